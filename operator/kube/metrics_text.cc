#include "operator/kube/metrics_text.h"

#include "absl/strings/str_cat.h"

namespace kvartal::kube {
namespace {

double Seconds(int64_t ms) { return static_cast<double>(ms) / 1000; }

// A metric and its lines.
class Metric {
 public:
  Metric(std::string* out, std::string name, const char* type, const char* what) : out_(out), name_(std::move(name)) {
    absl::StrAppend(out_, "# HELP ", name_, " ", what, "\n# TYPE ", name_, " ", type, "\n");
  }
  template <typename Value>
  Metric& Add(const std::string& labels, Value value) {
    absl::StrAppend(out_, name_, "{", labels, "} ", value, "\n");
    return *this;
  }
  Metric& AddHistogram(const std::string& labels, const Histogram& histogram) {
    for (size_t i = 0; i < Histogram::kBoundsMs.size(); ++i) {
      absl::StrAppend(out_, name_, "_bucket{", labels, ",le=\"", Seconds(Histogram::kBoundsMs[i]), "\"} ",
                      histogram.within(i), "\n");
    }
    absl::StrAppend(out_, name_, "_bucket{", labels, ",le=\"+Inf\"} ", histogram.count(), "\n");
    absl::StrAppend(out_, name_, "_sum{", labels, "} ", Seconds(histogram.sum_ms()), "\n");
    absl::StrAppend(out_, name_, "_count{", labels, "} ", histogram.count(), "\n");
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
  Metric(&out, "controller_runtime_reconcile_time_seconds", "histogram", "How long reconciles took.")
      .AddHistogram(controller, stats.work.queue.worked);
  Metric(&out, "controller_runtime_active_workers", "gauge", "Reconciles under way.")
      .Add(controller, stats.work.queue.working);
  const std::string queue = Label("name", stats.controller);
  Metric(&out, "workqueue_depth", "gauge", "Keys that are due.").Add(queue, stats.work.queue.depth);
  Metric(&out, "workqueue_adds_total", "counter", "Keys added.").Add(queue, stats.work.queue.adds);
  Metric(&out, "workqueue_retries_total", "counter", "Keys added again after a failure.")
      .Add(queue, stats.work.queue.retries);
  Metric(&out, "workqueue_queue_duration_seconds", "histogram", "How long keys that were due waited.")
      .AddHistogram(queue, stats.work.queue.queued);
  Metric(&out, "workqueue_work_duration_seconds", "histogram", "How long keys were worked on.")
      .AddHistogram(queue, stats.work.queue.worked);
  Metric(&out, "workqueue_unfinished_work_seconds", "gauge", "How long all keys under work have been, added up.")
      .Add(queue, Seconds(stats.work.queue.unfinished_ms));
  Metric(&out, "workqueue_longest_running_processor_seconds", "gauge", "How long the longest of them has been.")
      .Add(queue, Seconds(stats.work.queue.longest_ms));
  Metric durations(&out, "rest_client_request_duration_seconds", "histogram", "How long calls took, by verb and host.");
  for (const auto& [method, duration] : stats.calls.durations)
    durations.AddHistogram(absl::StrCat(Label("host", stats.host), ",", Label("verb", method)), duration);
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
