#include "operator/kube/metrics_text.h"

#include "absl/strings/str_cat.h"

namespace kvartal::kube {
namespace {

// A metric and its lines.
class Metric {
 public:
  Metric(std::string* out, std::string name, const char* type, const char* what) : out_(out), name_(std::move(name)) {
    absl::StrAppend(out_, "# HELP ", name_, " ", what, "\n# TYPE ", name_, " ", type, "\n");
  }
  Metric& Add(const std::string& labels, uint64_t value) {
    absl::StrAppend(out_, name_, "{", labels, "} ", value, "\n");
    return *this;
  }

 private:
  std::string* const out_;
  const std::string name_;
};

std::string Label(const char* name, const std::string& value) { return absl::StrCat(name, "=\"", value, "\""); }

}  // namespace

std::string MetricsText(const RuntimeStats& stats) {
  std::string out;
  const std::string controller = Label("controller", stats.controller);
  Metric(&out, "controller_runtime_reconcile_total", "counter", "Reconciles by result.")
      .Add(absl::StrCat(controller, ",result=\"success\""), stats.work.done)
      .Add(absl::StrCat(controller, ",result=\"error\""), stats.work.failed);
  Metric(&out, "controller_runtime_reconcile_errors_total", "counter", "Reconciles that failed.")
      .Add(controller, stats.work.failed);
  Metric(&out, "controller_runtime_max_concurrent_reconciles", "gauge", "Reconciles at once at most.")
      .Add(controller, stats.at_once);
  Metric(&out, "controller_runtime_active_workers", "gauge", "Reconciles under way.")
      .Add(controller, stats.work.queue.working);
  const std::string queue = Label("name", stats.controller);
  Metric(&out, "workqueue_depth", "gauge", "Keys that are due.").Add(queue, stats.work.queue.depth);
  Metric(&out, "workqueue_adds_total", "counter", "Keys added.").Add(queue, stats.work.queue.adds);
  Metric(&out, "workqueue_retries_total", "counter", "Keys added again after a failure.")
      .Add(queue, stats.work.queue.retries);
  Metric requests(&out, "rest_client_requests_total", "counter", "Requests by code, method and host.");
  for (const auto& [what, count] : stats.calls.requests) {
    const auto& [method, code] = what;
    requests.Add(absl::StrCat(Label("code", code == 0 ? "<error>" : std::to_string(code)), ",",
                              Label("host", stats.host), ",", Label("method", method)),
                 count);
  }
  Metric(&out, "leader_election_master_status", "gauge", "1 while this replica leads.")
      .Add(Label("name", stats.lease), stats.leading ? 1 : 0);
  return out;
}

}  // namespace kvartal::kube
