#include "tools/kvartal-bench/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/control/admin.grpc.pb.h"

namespace kvartal::bench {
namespace {

constexpr std::chrono::seconds kCallDeadline(30);

}  // namespace

struct AdminClient::Channel {
  std::unique_ptr<admin::v1::Admin::Stub> stub;

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (admin::v1::Admin::Stub::*verb)(grpc::ClientContext*, const Request&, Reply*),
                             const std::string& socket_path) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    context.set_wait_for_ready(true);
    Reply reply;
    const grpc::Status status = (stub.get()->*verb)(&context, Request(), &reply);
    if (status.ok()) return reply;
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat("admin socket ", socket_path, ": ", status.error_message()));
  }
};

AdminClient::AdminClient(const std::string& socket_path) : socket_path_(socket_path), channel_(new Channel) {
  grpc::ChannelArguments arguments;
  // A daemon that was just killed comes back within milliseconds: gRPC's second-long back-off would be measured as
  // ours.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_->stub = admin::v1::Admin::NewStub(
      grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(), arguments));
}

AdminClient::~AdminClient() = default;

absl::StatusOr<admin::v1::StatusReply> AdminClient::GetStatus() {
  return channel_->Call<admin::v1::StatusRequest, admin::v1::StatusReply>(&admin::v1::Admin::Stub::GetStatus,
                                                                          socket_path_);
}

absl::StatusOr<admin::v1::ListTenantsReply> AdminClient::ListTenants() {
  return channel_->Call<admin::v1::ListTenantsRequest, admin::v1::ListTenantsReply>(
      &admin::v1::Admin::Stub::ListTenants, socket_path_);
}

absl::StatusOr<admin::v1::Tenant> AdminClient::GetTenant(const std::string& name) {
  KV_ASSIGN_OR_RETURN(const admin::v1::ListTenantsReply reply, ListTenants());
  for (const admin::v1::Tenant& tenant : reply.tenants()) {
    if (tenant.name() == name) return tenant;
  }
  return absl::NotFoundError(absl::StrCat("the daemon at ", socket_path_, " has no tenant '", name, "'"));
}

absl::Status AdminClient::ReloadPolicy() {
  return channel_
      ->Call<admin::v1::ReloadPolicyRequest, admin::v1::ReloadPolicyReply>(&admin::v1::Admin::Stub::ReloadPolicy,
                                                                           socket_path_)
      .status();
}

absl::Status AdminClient::CheckInvariants() {
  return channel_
      ->Call<admin::v1::CheckInvariantsRequest, admin::v1::CheckInvariantsReply>(
          &admin::v1::Admin::Stub::CheckInvariants, socket_path_)
      .status();
}

const admin::v1::TenantTier& TierOf(const admin::v1::Tenant& tenant, const std::string& name) {
  static const admin::v1::TenantTier& empty = *new admin::v1::TenantTier;
  for (const admin::v1::TenantTier& tier : tenant.tiers()) {
    if (tier.name() == name) return tier;
  }
  return empty;
}

uint64_t RefusalsOf(const admin::v1::TenantTier& tier) {
  uint64_t sum = 0;
  for (const auto& [reason, count] : tier.refusals()) sum += count;
  return sum;
}

}  // namespace kvartal::bench
