// One run of the fleet benchmark, from an empty cluster: filled, nodes connected, policies edited, and with --outage
// everything but the nodes killed and started again.
// Confined to RunFleet.
// Invariant: what is reported of the operator is of the process before an outage, of `return_*` of its successor; what
// was asked of the API server is told apart by who wants it: the Lease, and everything else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/kube/operator_process.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/fleet_cluster.h"
#include "tools/kvartal-bench/fleet_nodes.h"
#include "tools/kvartal-bench/fleet_tenant.h"

namespace kvartal::bench {

class FleetRun {
 public:
  explicit FleetRun(const FleetOptions& options)
      : options_(options), loop_(*EventLoop::Create(&clock_)), cluster_(loop_.get()), tenant_(&cluster_) {}

  absl::StatusOr<Report> Run();

 private:
  // What the operator has asked of the API server since it began.
  struct Asked {
    double all = 0, writes = 0, lease_writes = 0;
  };

  absl::Status Fill();
  absl::Status FillPolicies();
  absl::Status FirstContact();
  // Every policy has its status, and nobody writes any more.
  absl::Status Quiet();
  absl::Status Edits();
  // One edit: when the answer of each of its nodes came.
  absl::StatusOr<std::vector<double>> Edit(uint32_t policy, uint32_t weight);
  void ReportOperator();

  // In fleet_outage.cc.
  absl::Status Outage();
  absl::Status WhileNobodyIsThere();
  absl::Status Converge(int64_t begin_ns);
  // Every node, as the operator counts them: the real one included.
  size_t NodesInAll() const { return options_.nodes + (options_.outage ? 1 : 0); }

  Asked AskedSoFar() const;
  template <typename Reached>
  absl::Status Until(const char* what, int64_t seconds, Reached reached) {
    const int64_t until_ns = clock_.MonotonicNs() + seconds * kNsPerSecond;
    while (!reached()) {
      if (clock_.MonotonicNs() > until_ns)
        return absl::DeadlineExceededError(absl::StrCat(what, " is not reached within ", seconds, " s"));
      loop_->RunOnce(20);
    }
    return absl::OkStatus();
  }
  absl::Status Pause(int64_t ms) {
    const int64_t until_ns = clock_.MonotonicNs() + ms * kNsPerMs;
    return Until("a pause", 600, [&] { return clock_.MonotonicNs() > until_ns; });
  }
  double SecondsSince(int64_t begin_ns) const {
    return static_cast<double>(clock_.MonotonicNs() - begin_ns) / kNsPerSecond;
  }

  const FleetOptions options_;
  const SystemClock clock_;
  std::unique_ptr<EventLoop> loop_;
  FleetCluster cluster_;
  FleetTenant tenant_;
  std::unique_ptr<testing::OperatorProcess> operator_;
  std::unique_ptr<FleetNodes> nodes_;
  Report report_{"fleet"};
};

}  // namespace kvartal::bench
