// The root-only Unix socket with the admin service behind it: a small synchronous gRPC server.
// Confined to the thread that starts and destroys it.
// Invariant: nobody but the daemon's own user can connect, at any moment of the socket's life.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/control/admin_backend.h"

namespace grpc {
class Server;
}

namespace kvartal::control {

class AdminService;

class AdminServer {
 public:
  // InvalidArgument: the path is too long for a Unix socket. AlreadyExists: a daemon answers there already. A dead
  // socket is replaced.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const std::string& socket_path, Executor* loop,
                                                            AdminBackend* backend);
  // Ends waiting calls and unlinks the socket. Does not need the loop to run.
  ~AdminServer();

  const std::string& socket_path() const { return socket_path_; }

 private:
  AdminServer(std::string socket_path, std::unique_ptr<AdminService> service, std::unique_ptr<grpc::Server> server);
  const std::string socket_path_;
  const std::unique_ptr<AdminService> service_;
  std::unique_ptr<grpc::Server> server_;
};

// OK when `path` fits a Unix socket and nobody answers there. AlreadyExists when somebody does.
absl::Status CheckSocketFree(const std::string& path);

}  // namespace kvartal::control
