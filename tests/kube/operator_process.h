// A real kvartal-operator against a test's API server: started, stopped, killed and started again, by its process id.
// Confined to the test that owns it.
// Invariant: nothing it started outlives it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::testing {

// Free now, and of no other process of this test.
int TakeFreePort();

class OperatorProcess {
 public:
  // A lease shorter than a cluster's, so that tests need not wait for one to run out.
  explicit OperatorProcess(std::string kubeconfig, std::vector<std::string> more_flags = {}, int64_t lease_ms = 6'000);
  ~OperatorProcess();
  OperatorProcess(const OperatorProcess&) = delete;
  OperatorProcess& operator=(const OperatorProcess&) = delete;

  void Start();
  // False when it does not lead and listen for nodes after longer than any test should wait.
  bool WaitUntilItLeads();
  void Kill();  // SIGKILL
  // SIGTERM and its end: the exit code.
  int Stop();
  // Of itself: the exit code.
  int WaitForEnd();

  pid_t pid() const { return pid_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string log() const;
  // The value of a metric without labels; -1 when it is not there.
  double Metric(const std::string& name) const;
  // The sum of a metric over its labels, of those that `counts`; -1 when it is not there.
  double MetricSum(const std::string& name, const std::function<bool(const std::string& labels)>& counts = {}) const;
  // HTTP status of a path of its health port.
  int Health(const std::string& path) const;

 private:
  std::string Get(const std::string& path) const;

  const std::string kubeconfig_;
  const std::vector<std::string> more_flags_;
  const int64_t lease_ms_;
  const ScratchDir dir_;
  const int port_, health_port_;
  pid_t pid_ = -1;
};

}  // namespace kvartal::testing
