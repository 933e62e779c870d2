#include "daemon/control/admin_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/base/unique_fd.h"
#include "daemon/control/admin_service.h"

namespace kvartal::control {
namespace {

// Files made while one of these lives are the owner's alone.
class PrivateUmask {
 public:
  PrivateUmask() : before_(::umask(0177)) {}
  ~PrivateUmask() { ::umask(before_); }
  PrivateUmask(const PrivateUmask&) = delete;
  PrivateUmask& operator=(const PrivateUmask&) = delete;

 private:
  const mode_t before_;
};

std::unique_ptr<grpc::Server> BuildServer(const std::string& socket_path, AdminService* service) {
  grpc::ResourceQuota quota("admin");
  quota.SetMaxThreads(kAdminThreadsMax);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kAdminRequestBytesMax);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
  builder.AddListeningPort(absl::StrCat("unix:", socket_path), grpc::InsecureServerCredentials());
  builder.RegisterService(service);
  const PrivateUmask owner_only;
  return builder.BuildAndStart();
}

}  // namespace

absl::Status CheckSocketFree(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " has ", path.size(),
                                                   " bytes; a Unix socket allows ", sizeof(address.sun_path) - 1,
                                                   ": use a shorter folder"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // A SEQPACKET socket refuses a STREAM peer with EPROTOTYPE: that too is somebody.
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return absl::ErrnoToStatus(errno, "making a Unix socket");
  const int result = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (result == 0 || errno == EPROTOTYPE || errno == EAGAIN) {
    return absl::AlreadyExistsError(
        absl::StrCat("another process answers on ", path, ": stop it first, or give this daemon another runDir"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const std::string& socket_path, Executor* loop,
                                                                AdminBackend* backend) {
  KV_RETURN_IF_ERROR(CheckSocketFree(socket_path));
  auto service = std::make_unique<AdminService>(loop, backend);
  std::unique_ptr<grpc::Server> server = BuildServer(socket_path, service.get());
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", socket_path, ": ", std::strerror(errno),
                                               "; its folder must exist and be writable by this user"));
  }
  if (::chmod(socket_path.c_str(), 0600) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("making ", socket_path, " private"));
  }
  return std::unique_ptr<AdminServer>(new AdminServer(socket_path, std::move(service), std::move(server)));
}

AdminServer::AdminServer(std::string socket_path, std::unique_ptr<AdminService> service,
                         std::unique_ptr<grpc::Server> server)
    : socket_path_(std::move(socket_path)), service_(std::move(service)), server_(std::move(server)) {}

AdminServer::~AdminServer() {
  service_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(kAdminStopMs));
  server_->Wait();
  ::unlink(socket_path_.c_str());
}

}  // namespace kvartal::control
