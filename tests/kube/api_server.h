// A real kube-apiserver with its etcd on loopback, in a folder of its own: started, stopped, frozen, killed and started
// again on the same port and state, always by its process ids.
// Confined to the test that owns it.
// Invariant: nothing it started outlives it, also when the test dies.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "operator/kube/cluster_access.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::testing {

struct ApiServerOptions {
  bool watch_cache = true;  // false: watches read etcd itself, so a compaction ends them as expired
};

class ApiServer {
 public:
  explicit ApiServer(ApiServerOptions options = {});
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // Starts what does not run and waits until the server is ready. Not OK: with the end of what it printed.
  absl::Status Start();
  // The API server alone; etcd goes on.
  void KillApiServer();
  void Freeze();  // SIGSTOP: connections stay open and nobody answers
  void Thaw();
  // etcd forgets every revision but the newest.
  absl::Status Compact();

  // As cluster admin: by client certificate.
  kube::ClusterAccess admin() const;
  // With a bearer token of this file, by no certificate.
  kube::ClusterAccess ByTokenFile(const std::string& path) const;
  std::string kubeconfig_path() const { return dir_.File("kubeconfig"); }
  std::string ca_path() const { return dir_.File("ca.crt"); }
  std::string server() const { return "https://127.0.0.1:" + std::to_string(port_); }
  const ScratchDir& dir() const { return dir_; }

 private:
  absl::Status MakeCertificates();
  void WriteKubeconfig() const;
  absl::Status WaitUntilReady();
  absl::Status CheckAlive();
  pid_t Spawn(const std::vector<std::string>& argv, const std::string& log) const;
  std::vector<std::string> ApiServerFlags() const;

  const ApiServerOptions options_;
  const ScratchDir dir_;
  int port_ = 0;
  pid_t etcd_ = -1, apiserver_ = -1;
};

}  // namespace kvartal::testing
