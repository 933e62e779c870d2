// A real API server filled with many objects, and edits of them: many calls at once, and no limit of a polite client.
// Confined to the thread that made it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "operator/kube/cpprest_transport.h"
#include "tests/kube/api_server.h"

namespace kvartal::bench {

class FleetCluster {
 public:
  explicit FleetCluster(EventLoop* loop) : loop_(loop) {}

  // Starts the server and installs the definitions.
  absl::Status Start();
  // Makes `count` objects; `body` gives each. The first refusal ends it.
  absl::Status MakeMany(const std::string& what, const std::string& target, size_t count,
                        const std::function<std::string(size_t)>& body);
  // One call; what it answered.
  absl::StatusOr<std::string> Call(const std::string& method, const std::string& target, const std::string& body,
                                   const std::string& content_type);
  std::string kubeconfig() const { return server_.kubeconfig_path(); }
  const testing::ScratchDir& dir() const { return server_.dir(); }
  // The API server alone is killed; etcd, and so the cluster, goes on.
  void Kill();
  absl::Status Restart();

 private:
  using Done = std::function<void(absl::StatusOr<std::string>)>;
  void Begin(const std::string& method, const std::string& target, const std::string& body,
             const std::string& content_type, Done done);

  EventLoop* const loop_;
  testing::ApiServer server_;
  std::unique_ptr<kube::CpprestTransport> transport_;
};

}  // namespace kvartal::bench
