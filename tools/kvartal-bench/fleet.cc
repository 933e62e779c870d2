// One real operator on a real API server, and thousands of simulated nodes.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/kube/operator_process.h"
#include "tools/kvartal-bench/benches.h"
#include "tools/kvartal-bench/fleet_cluster.h"
#include "tools/kvartal-bench/fleet_nodes.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr const char* kPolicies = "/apis/kvartal.dev/v1alpha1/namespaces/fleet/tenantkvpolicies";

// Of a running process, from /proc.
double RssMib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmRSS:")) return std::atof(line.c_str() + 6) / 1024;
  }
  return 0;
}

// One run, from an empty cluster.
// Confined to RunFleet.
class FleetBench {
 public:
  explicit FleetBench(const FleetOptions& options)
      : options_(options), loop_(*EventLoop::Create(&clock_)), cluster_(loop_.get()) {}

  absl::StatusOr<Report> Run() {
    KV_RETURN_IF_ERROR(Fill());
    operator_ =
        std::make_unique<testing::OperatorProcess>(cluster_.kubeconfig(), std::vector<std::string>{"--api-qps", "200"});
    operator_->Start();
    if (!operator_->WaitUntilItLeads()) return absl::DeadlineExceededError(operator_->log());
    nodes_ = std::make_unique<FleetNodes>(loop_.get(), &clock_, operator_->address(), options_.nodes);
    report_.Add("nodes", uint64_t{options_.nodes});
    report_.Add("policies", uint64_t{options_.policies});
    report_.Add("nodes_a_policy", uint64_t{options_.nodes / options_.pools});
    KV_RETURN_IF_ERROR(ConnectAll("first_contact"));
    KV_RETURN_IF_ERROR(Quiet());
    KV_RETURN_IF_ERROR(Edits());
    if (options_.outage) KV_RETURN_IF_ERROR(Outage());
    report_.Add("operator_rss_mib", RssMib(operator_->pid()));
    report_.Add("decision_ms", operator_->Metric("kvartal_operator_last_decision_seconds") * 1000);
    return std::move(report_);
  }

 private:
  absl::Status Fill() {
    KV_RETURN_IF_ERROR(cluster_.Start());
    KV_RETURN_IF_ERROR(
        cluster_.Call("POST", "/api/v1/namespaces", R"({"metadata":{"name":"fleet"}})", "application/json").status());
    KV_RETURN_IF_ERROR(cluster_.MakeMany("nodes", "/api/v1/nodes", options_.nodes, [&](size_t i) {
      return absl::StrFormat(R"({"metadata":{"name":"%s","labels":{"pool":"p%d"}}})", FleetNodes::NameOf(i),
                             i % options_.pools);
    }));
    KV_RETURN_IF_ERROR(
        cluster_.MakeMany("pools", "/apis/kvartal.dev/v1alpha1/kvnodepools", options_.pools, [](size_t i) {
          return absl::StrFormat(
              R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"KVNodePool","metadata":{"name":"p%d"},)"
              R"("spec":{"nodeSelector":{"pool":"p%d"},"capacity":{"dram":"1Ti"}}})",
              i, i);
        }));
    return cluster_.MakeMany("policies", kPolicies, options_.policies, [&](size_t i) {
      return absl::StrFormat(
          R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"TenantKVPolicy","metadata":{"name":"t%d"},)"
          R"("spec":{"subjects":[{"serviceAccountName":"s%d"}],"pools":[{"poolRef":"p%d","perNode":)"
          R"({"dram":{"guarantee":"1Gi","limit":"8Gi"}}}]}})",
          i, i, i % options_.pools);
    });
  }

  template <typename Reached>
  absl::Status Until(const char* what, int64_t seconds, Reached reached) {
    const int64_t until_ns = clock_.MonotonicNs() + seconds * kNsPerSecond;
    while (!reached()) {
      if (clock_.MonotonicNs() > until_ns) return absl::DeadlineExceededError(absl::StrCat(what, " is not reached"));
      loop_->RunOnce(20);
    }
    return absl::OkStatus();
  }

  absl::Status ConnectAll(const std::string& name) {
    const int64_t begin_ns = clock_.MonotonicNs();
    if (nodes_->with_any_set() == 0) nodes_->Start();
    Progress progress(name, options_.nodes);
    KV_RETURN_IF_ERROR(Until(name.c_str(), 600, [&] {
      progress.Update(nodes_->connected());
      return nodes_->connected() == options_.nodes && nodes_->with_any_set() == options_.nodes;
    }));
    report_.Add(name + "_s", static_cast<double>(clock_.MonotonicNs() - begin_ns) / kNsPerSecond);
    report_.Add(name + "_streams_per_s_peak", uint64_t{nodes_->TakeStreamsPeak()});
    nodes_->TakeAnswers();
    return absl::OkStatus();
  }

  // Every policy has its status, and nobody writes any more.
  absl::Status Quiet() {
    double last = -1;
    int64_t last_change_ns = clock_.MonotonicNs(), looked_ns = 0;
    Progress progress("status", options_.policies);
    return Until("rest", 1200, [&] {
      if (clock_.MonotonicNs() - looked_ns < kNsPerSecond) return false;
      looked_ns = clock_.MonotonicNs();
      const double writes = operator_->Metric("kvartal_operator_status_writes_total");
      progress.Update(std::min<uint64_t>(options_.policies, static_cast<uint64_t>(std::max(0.0, writes))));
      if (writes != last) last_change_ns = looked_ns;
      last = writes;
      return writes >= options_.policies && looked_ns - last_change_ns > 5 * kNsPerSecond;
    });
  }

  absl::Status Edits() {
    std::vector<double> ack_ms, last_ms;
    const double writes = operator_->Metric("kvartal_operator_status_writes_total");
    const size_t each = options_.nodes / options_.pools;
    Progress progress("edits", options_.edits);
    for (uint32_t edit = 0; edit < options_.edits; ++edit) {
      nodes_->TakeAnswers();
      std::vector<int64_t> answers;
      const int64_t begin_ns = clock_.MonotonicNs();
      KV_RETURN_IF_ERROR(cluster_
                             .Call("PATCH", absl::StrCat(kPolicies, "/t", edit),
                                   absl::StrFormat(R"({"spec":{"weight":%d}})", 1 + edit % 9999),
                                   "application/merge-patch+json")
                             .status());
      KV_RETURN_IF_ERROR(Until("an edit", 60, [&] {
        for (const int64_t answer : nodes_->TakeAnswers()) answers.push_back(answer);
        return answers.size() >= each;
      }));
      for (const int64_t answer : answers) ack_ms.push_back(static_cast<double>(answer - begin_ns) / kNsPerMs);
      last_ms.push_back(ack_ms.back());
      progress.Update(edit + 1);
      // Its status is due, too.
      const int64_t pause_ns = clock_.MonotonicNs() + 2 * kNsPerSecond;
      KV_RETURN_IF_ERROR(Until("a pause", 60, [&] { return clock_.MonotonicNs() > pause_ns; }));
    }
    report_.Add("edits", options_.edits);
    report_.Add("ack_p50_ms", Percentile(ack_ms, 50));
    report_.Add("ack_p99_ms", Percentile(ack_ms, 99));
    report_.Add("last_node_p50_ms", Percentile(last_ms, 50));
    report_.Add("api_writes_per_edit",
                (operator_->Metric("kvartal_operator_status_writes_total") - writes) / options_.edits);
    return absl::OkStatus();
  }

  absl::Status Outage() {
    operator_->Kill();
    KV_RETURN_IF_ERROR(Until("the outage", 60, [&] { return nodes_->connected() == 0; }));
    nodes_->TakeStreamsPeak();
    const int64_t pause_ns = clock_.MonotonicNs() + 10 * kNsPerSecond;
    KV_RETURN_IF_ERROR(Until("a pause", 60, [&] { return clock_.MonotonicNs() > pause_ns; }));
    operator_->Start();
    KV_RETURN_IF_ERROR(ConnectAll("return"));
    report_.Add("return_updates", operator_->Metric("kvartal_operator_updates_total"));
    return absl::OkStatus();
  }

  const FleetOptions options_;
  const SystemClock clock_;
  std::unique_ptr<EventLoop> loop_;
  FleetCluster cluster_;
  std::unique_ptr<testing::OperatorProcess> operator_;
  std::unique_ptr<FleetNodes> nodes_;
  Report report_{"fleet"};
};

}  // namespace

absl::StatusOr<Report> RunFleet(const FleetOptions& options) {
  if (options.nodes % options.pools != 0)
    return absl::InvalidArgumentError("--nodes has to be a multiple of --pools: an edit is measured on whole pools");
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return FleetBench(options).Run();
}

}  // namespace kvartal::bench
