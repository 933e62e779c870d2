// One real operator on a real API server, and thousands of simulated nodes.
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "operator/kube/limits.h"
#include "tools/kvartal-bench/bench_daemon.h"
#include "tools/kvartal-bench/fleet_run.h"
#include "tools/kvartal-bench/progress.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr const char* kPolicies = "/apis/kvartal.dev/v1alpha1/namespaces/fleet/tenantkvpolicies";
constexpr int64_t kMetricsOldMs = 2'500;  // an operator makes its metrics every two seconds
// A stream of a node is a socket here and one in the operator; the API server, gRPC and the logs have the rest.
constexpr uint64_t kDescriptorsBeside = 512;

// Of a running process, from /proc.
double StatusMib(pid_t pid, const std::string& field) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, field + ":")) return std::atof(line.c_str() + field.size() + 1) / 1024;
  }
  return 0;
}

absl::Status AllowDescriptors(uint32_t nodes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const uint64_t wanted = nodes + kDescriptorsBeside;
  if (limit.rlim_max < wanted) {
    return absl::FailedPreconditionError(
        absl::StrCat(nodes, " nodes need ", wanted, " file descriptors in a process and ", limit.rlim_max,
                     " are allowed: raise the hard limit (ulimit -Hn ", wanted, " as root), or use fewer --nodes"));
  }
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> FleetRun::Run() {
  KV_RETURN_IF_ERROR(Fill());
  operator_ = std::make_unique<testing::OperatorProcess>(
      cluster_.kubeconfig(), std::vector<std::string>{"--api-qps", std::to_string(options_.api_qps)},
      kube::kLeaseDurationMs);
  operator_->Start();
  if (!operator_->WaitUntilItLeads()) return absl::DeadlineExceededError(operator_->log());
  nodes_ = std::make_unique<FleetNodes>(loop_.get(), &clock_, operator_->address(), options_.nodes);
  report_.Add("nodes", uint64_t{options_.nodes});
  report_.Add("policies", uint64_t{options_.policies});
  report_.Add("nodes_a_policy", uint64_t{options_.nodes / options_.pools});
  KV_RETURN_IF_ERROR(FirstContact());
  KV_RETURN_IF_ERROR(Quiet());
  KV_RETURN_IF_ERROR(Edits());
  ReportOperator();
  if (options_.outage) KV_RETURN_IF_ERROR(Outage());
  return std::move(report_);
}

absl::Status FleetRun::Fill() {
  KV_RETURN_IF_ERROR(cluster_.Start());
  KV_RETURN_IF_ERROR(
      cluster_.Call("POST", "/api/v1/namespaces", R"({"metadata":{"name":"fleet"}})", "application/json").status());
  KV_RETURN_IF_ERROR(cluster_.MakeMany("nodes", "/api/v1/nodes", options_.nodes, [&](size_t i) {
    return absl::StrFormat(R"({"metadata":{"name":"%s","labels":{"pool":"p%d"}}})", FleetNodes::NameOf(i),
                           i % options_.pools);
  }));
  KV_RETURN_IF_ERROR(cluster_.MakeMany("pools", "/apis/kvartal.dev/v1alpha1/kvnodepools", options_.pools, [](size_t i) {
    return absl::StrFormat(R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"KVNodePool","metadata":{"name":"p%d"},)"
                           R"("spec":{"nodeSelector":{"pool":"p%d"},"capacity":{"dram":"1Ti"}}})",
                           i, i);
  }));
  if (options_.outage) KV_RETURN_IF_ERROR(tenant_.Make());
  return FillPolicies();
}

absl::Status FleetRun::FillPolicies() {
  return cluster_.MakeMany("policies", kPolicies, options_.policies, [&](size_t i) {
    return absl::StrFormat(R"({"apiVersion":"kvartal.dev/v1alpha1","kind":"TenantKVPolicy","metadata":{"name":"t%d"},)"
                           R"("spec":{"subjects":[{"serviceAccountName":"s%d"}],"pools":[{"poolRef":"p%d","perNode":)"
                           R"({"dram":{"guarantee":"1Gi","limit":"8Gi"}}}]}})",
                           i, i, i % options_.pools);
  });
}

// How many began within a second cannot be seen here: this process dials all of them in one go, and hears what the
// first were told when it has dialed the last.
absl::Status FleetRun::FirstContact() {
  const int64_t begin_ns = clock_.MonotonicNs();
  nodes_->Start();
  Progress progress("first contact", options_.nodes);
  KV_RETURN_IF_ERROR(Until("first contact", 600, [&] {
    progress.Update(nodes_->connected());
    return nodes_->connected() == options_.nodes && nodes_->with_any_set() == options_.nodes;
  }));
  report_.Add("first_contact_s", SecondsSince(begin_ns));
  nodes_->TakeAnswers();
  return absl::OkStatus();
}

absl::Status FleetRun::Quiet() {
  const int64_t begin_ns = clock_.MonotonicNs();
  double last = -1;
  int64_t last_change_ns = begin_ns, looked_ns = 0;
  Progress progress("status", options_.policies);
  KV_RETURN_IF_ERROR(Until("rest", 1800, [&] {
    if (clock_.MonotonicNs() - looked_ns < kNsPerSecond) return false;
    looked_ns = clock_.MonotonicNs();
    const double writes = operator_->Metric("kvartal_operator_status_writes_total");
    progress.Update(std::min<uint64_t>(options_.policies, static_cast<uint64_t>(std::max(0.0, writes))));
    if (writes != last) last_change_ns = looked_ns;
    last = writes;
    return writes >= options_.policies && looked_ns - last_change_ns > 5 * kNsPerSecond;
  }));
  report_.Add("statuses_s", SecondsSince(begin_ns));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> FleetRun::Edit(uint32_t policy, uint32_t weight) {
  nodes_->TakeAnswers();
  std::vector<double> answers_ms;
  const int64_t begin_ns = clock_.MonotonicNs();
  KV_RETURN_IF_ERROR(cluster_
                         .Call("PATCH", absl::StrCat(kPolicies, "/t", policy),
                               absl::StrFormat(R"({"spec":{"weight":%d}})", weight), "application/merge-patch+json")
                         .status());
  KV_RETURN_IF_ERROR(Until("an edit", 60, [&] {
    for (const int64_t answer : nodes_->TakeAnswers())
      answers_ms.push_back(static_cast<double>(answer - begin_ns) / kNsPerMs);
    return answers_ms.size() >= options_.nodes / options_.pools;
  }));
  return answers_ms;
}

absl::Status FleetRun::Edits() {
  std::vector<double> ack_ms, last_ms;
  KV_RETURN_IF_ERROR(Pause(kMetricsOldMs));
  const Asked before = AskedSoFar();
  const int64_t begin_ns = clock_.MonotonicNs();
  Progress progress("edits", options_.edits);
  for (uint32_t edit = 0; edit < options_.edits; ++edit) {
    KV_ASSIGN_OR_RETURN(const std::vector<double> answers_ms,
                        Edit(edit % options_.policies, 1 + (edit / options_.policies) % 9999));
    ack_ms.insert(ack_ms.end(), answers_ms.begin(), answers_ms.end());
    last_ms.push_back(answers_ms.back());
    progress.Update(edit + 1);
    KV_RETURN_IF_ERROR(Pause(2'000));  // its status is due, too
  }
  KV_RETURN_IF_ERROR(Pause(kMetricsOldMs));
  const Asked after = AskedSoFar();
  const double seconds = SecondsSince(begin_ns);
  report_.Add("edits", options_.edits);
  report_.Add("ack_p50_ms", Percentile(ack_ms, 50));
  report_.Add("ack_p99_ms", Percentile(ack_ms, 99));
  report_.Add("last_node_p50_ms", Percentile(last_ms, 50));
  report_.Add("api_writes_per_edit", (after.writes - before.writes) / options_.edits);
  report_.Add("api_requests_per_s", (after.all - before.all) / seconds);
  report_.Add("lease_writes_per_s", (after.lease_writes - before.lease_writes) / seconds);
  return absl::OkStatus();
}

FleetRun::Asked FleetRun::AskedSoFar() const {
  const auto sum = [&](auto counts) { return operator_->MetricSum("rest_client_requests_total", counts); };
  const auto has = [](const std::string& labels, const char* method) {
    return absl::StrContains(labels, absl::StrCat("method=\"", method, "\""));
  };
  // Nothing but a renewal of the Lease is a PUT.
  return {.all = sum([](const std::string&) { return true; }),
          .writes = sum([&](const std::string& labels) { return !has(labels, "GET") && !has(labels, "PUT"); }),
          .lease_writes = sum([&](const std::string& labels) { return has(labels, "PUT"); })};
}

void FleetRun::ReportOperator() {
  const pid_t pid = operator_->pid();
  report_.Add("operator_rss_mib", StatusMib(pid, "VmRSS"));
  report_.Add("operator_rss_peak_mib", StatusMib(pid, "VmHWM"));
  report_.Add("operator_cpu_s", CpuSecondsOf(pid).value_or(0));
  report_.Add("decision_ms", operator_->Metric("kvartal_operator_last_decision_seconds") * 1000);
  report_.Add("api_requests", AskedSoFar().all);
}

absl::StatusOr<Report> RunFleet(const FleetOptions& options) {
  if (options.nodes % options.pools != 0)
    return absl::InvalidArgumentError("--nodes has to be a multiple of --pools: an edit is measured on whole pools");
  KV_RETURN_IF_ERROR(AllowDescriptors(options.nodes));
  return FleetRun(options).Run();
}

}  // namespace kvartal::bench
