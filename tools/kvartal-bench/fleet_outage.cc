// Operator and API server are killed together and started again: what nodes enforce must not notice, and their return
// must not be a herd.
#include "operator/sync/limits.h"
#include "tools/kvartal-bench/fleet_run.h"
#include "tools/kvartal-bench/progress.h"

namespace kvartal::bench {
namespace {

constexpr int64_t kAwaySeconds = 10;
constexpr int64_t kUsePeriodMs = 200;
// Within any second: what has been saved up, and what comes meanwhile.
constexpr double kStreamsBound = sync::kStreamsBurst + sync::kStreamsPerSecond;

}  // namespace

absl::Status FleetRun::Outage() {
  KV_RETURN_IF_ERROR(tenant_.Start(operator_->address()));
  for (int i = 0; i < 20; ++i) KV_RETURN_IF_ERROR(tenant_.Use());  // at its limit from here on
  operator_->Kill();
  cluster_.Kill();
  KV_RETURN_IF_ERROR(WhileNobodyIsThere());
  const int64_t begin_ns = clock_.MonotonicNs();
  operator_->Start();  // it finds no API server at first, as after a power cut
  KV_RETURN_IF_ERROR(cluster_.Restart());
  KV_RETURN_IF_ERROR(Converge(begin_ns));
  const double peak = static_cast<double>(nodes_->TakeStreamsPeak());
  report_.Add("return_streams_per_s_peak", peak);
  report_.Add("return_streams_per_s_bound", kStreamsBound);
  const double updates = operator_->Metric("kvartal_operator_updates_total");
  report_.Add("return_updates", updates);
  report_.Add("enforced_looks", tenant_.looks());
  report_.Add("enforced_stores", tenant_.stored());
  report_.Add("enforced_most_of_limit", static_cast<double>(tenant_.most_bytes()) / FleetTenant::kLimitBytes);
  KV_ASSIGN_OR_RETURN(const std::vector<double> answers_ms, Edit(0, 5'000));
  report_.Add("edit_after_return_ms", answers_ms.back());
  report_.Require(peak <= kStreamsBound, "return_streams_per_s_peak");
  report_.Require(updates == 0, "return_updates");
  return absl::OkStatus();
}

absl::Status FleetRun::WhileNobodyIsThere() {
  KV_RETURN_IF_ERROR(Until("the outage", 60, [&] { return nodes_->connected() == 0; }));
  nodes_->TakeStreamsPeak();
  const uint64_t looks = tenant_.looks();
  const int64_t until_ns = clock_.MonotonicNs() + kAwaySeconds * kNsPerSecond;
  while (clock_.MonotonicNs() < until_ns) {
    KV_RETURN_IF_ERROR(tenant_.Use());
    KV_RETURN_IF_ERROR(Pause(kUsePeriodMs));
  }
  report_.Add("away_s", static_cast<double>(kAwaySeconds));
  report_.Add("away_looks", tenant_.looks() - looks);
  return absl::OkStatus();
}

// Until every node has a stream, and the operator has seen that each holds what it is to.
absl::Status FleetRun::Converge(int64_t begin_ns) {
  int64_t looked_ns = 0;
  bool all_back = false;
  absl::Status used;
  Progress progress("return", options_.nodes);
  KV_RETURN_IF_ERROR(Until("convergence", 900, [&] {
    progress.Update(nodes_->connected());
    if (!all_back && nodes_->connected() == options_.nodes) {
      all_back = true;
      report_.Add("return_s", SecondsSince(begin_ns));
    }
    if (clock_.MonotonicNs() - looked_ns < kNsPerSecond) return false;
    looked_ns = clock_.MonotonicNs();
    used.Update(tenant_.Use());
    return !used.ok() ||
           (all_back && operator_->Metric("kvartal_operator_nodes_current") == static_cast<double>(NodesInAll()) &&
            operator_->Metric("kvartal_operator_nodes_connected") == static_cast<double>(NodesInAll()));
  }));
  report_.Add("converged_s", SecondsSince(begin_ns));
  return used;
}

}  // namespace kvartal::bench
