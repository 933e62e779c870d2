#include "tools/admin/admin_client.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::admin {
namespace {

namespace pb = admin::v1;

// Somewhat more than the daemon's own patience, so that its answer, which says more, comes first.
constexpr int64_t kGraceMs = 1000;
constexpr int64_t kStartMs = 30'000;  // a daemon that comes back with a large disk under load

// Asked with a plain connect first: what gRPC says of a socket that is not there helps nobody.
absl::Status Probe(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", socket, " is longer than the ",
                                                   sizeof(address.sun_path) - 1, " bytes of a Unix socket"));
  }
  std::memcpy(address.sun_path, socket.c_str(), socket.size() + 1);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "making a Unix socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return absl::OkStatus();
  const int error = errno;
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat("permission denied on ", socket,
                                                    ": the admin socket is for the daemon's own user alone (mode "
                                                    "0600); run kvartalctl as root or as that user"));
  }
  struct stat info{};
  if (error == ECONNREFUSED && ::stat(socket.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(socket, " is not a socket; kvartald's admin socket is admin.sock in its runDir"));
  }
  if (error == EPROTOTYPE) {
    return absl::InvalidArgumentError(
        absl::StrCat(socket, " is the socket for pods; the admin socket is the one named admin.sock beside it"));
  }
  const std::string message =
      absl::StrCat("no daemon answers on ", socket, " (", std::strerror(error),
                   "): start one with `kvartald --config FILE`, or name its admin socket with --socket or "
                   "$KVARTAL_ADMIN_SOCKET");
  return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<AdminClient> AdminClient::Connect(const std::string& socket) {
  KV_RETURN_IF_ERROR(Probe(socket));
  return AdminClient(
      socket, false,
      pb::Admin::NewStub(grpc::CreateChannel(absl::StrCat("unix:", socket), grpc::InsecureChannelCredentials())));
}

AdminClient AdminClient::WaitingFor(const std::string& socket) {
  grpc::ChannelArguments arguments;
  // A daemon that was just killed comes back within milliseconds: gRPC's second-long back-off would be measured as
  // ours.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return AdminClient(socket, true,
                     pb::Admin::NewStub(grpc::CreateCustomChannel(absl::StrCat("unix:", socket),
                                                                  grpc::InsecureChannelCredentials(), arguments)));
}

template <typename Request, typename Reply>
absl::StatusOr<Reply> AdminClient::Call(grpc::Status (pb::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                Reply*),
                                        const Request& request, int64_t deadline_ms) {
  grpc::ClientContext context;
  const int64_t patience_ms = deadline_ms + (waits_ ? kStartMs : kGraceMs);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(patience_ms));
  context.set_wait_for_ready(waits_);
  Reply reply;
  const grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
  if (status.ok()) return reply;
  const std::string& text = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(
        absl::StrCat("the daemon on ", socket_, " went away before it answered (", text, "): see its log"));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(absl::StrCat("the daemon on ", socket_, " is older than this program: ", text));
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
}

absl::StatusOr<pb::StatusReply> AdminClient::GetStatus() {
  return Call(&pb::Admin::Stub::GetStatus, pb::StatusRequest(), kAdminAnswerMs);
}
absl::StatusOr<pb::ListTenantsReply> AdminClient::ListTenants() {
  return Call(&pb::Admin::Stub::ListTenants, pb::ListTenantsRequest(), kAdminAnswerMs);
}
absl::StatusOr<pb::Tenant> AdminClient::GetTenant(const std::string& name) {
  KV_ASSIGN_OR_RETURN(const pb::ListTenantsReply reply, ListTenants());
  for (const pb::Tenant& tenant : reply.tenants()) {
    if (tenant.name() == name) return tenant;
  }
  return absl::NotFoundError(absl::StrCat("the daemon on ", socket_, " has no tenant '", name, "'"));
}
absl::StatusOr<pb::ListSessionsReply> AdminClient::ListSessions() {
  return Call(&pb::Admin::Stub::ListSessions, pb::ListSessionsRequest(), kAdminAnswerMs);
}
absl::StatusOr<pb::ExplainReply> AdminClient::Explain(const std::string& tenant) {
  pb::ExplainRequest request;
  request.set_tenant(tenant);
  return Call(&pb::Admin::Stub::Explain, request, kAdminAnswerMs);
}
absl::StatusOr<pb::DropReply> AdminClient::Drop(const std::string& tenant) {
  pb::DropRequest request;
  request.set_tenant(tenant);
  return Call(&pb::Admin::Stub::Drop, request, kAdminLongAnswerMs);
}
absl::StatusOr<pb::DrainReply> AdminClient::Drain() {
  return Call(&pb::Admin::Stub::Drain, pb::DrainRequest(), kAdminLongAnswerMs);
}
absl::StatusOr<pb::ReloadPolicyReply> AdminClient::ReloadPolicy() {
  return Call(&pb::Admin::Stub::ReloadPolicy, pb::ReloadPolicyRequest(), kAdminAnswerMs);
}
absl::StatusOr<pb::CheckInvariantsReply> AdminClient::CheckInvariants() {
  return Call(&pb::Admin::Stub::CheckInvariants, pb::CheckInvariantsRequest(), kAdminLongAnswerMs);
}

const pb::TenantTier& TierOf(const pb::Tenant& tenant, const std::string& name) {
  static const pb::TenantTier& empty = *new pb::TenantTier;
  for (const pb::TenantTier& tier : tenant.tiers()) {
    if (tier.name() == name) return tier;
  }
  return empty;
}

uint64_t RefusalsOf(const pb::TenantTier& tier) {
  uint64_t sum = 0;
  for (const auto& [reason, count] : tier.refusals()) sum += count;
  return sum;
}

}  // namespace kvartal::admin
