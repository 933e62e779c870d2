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

// A metric with a line, or a histogram, of each controller.
template <typename AddOne>
void OfEach(std::string* out, const std::vector<ControllerReport>& controllers, const char* name, const char* type,
            const char* what, AddOne add) {
  Metric metric(out, name, type, what);
  for (const ControllerReport& one : controllers) add(metric, one);
}

std::string Controller(const ControllerReport& one) { return Label("controller", one.name); }
std::string Queue(const ControllerReport& one) { return Label("name", one.name); }

void AddControllers(std::string* out, const std::vector<ControllerReport>& controllers) {
  using One = const ControllerReport&;
  OfEach(out, controllers, "controller_runtime_reconcile_total", "counter", "Reconciles by result.",
         [](Metric& metric, One one) {
           metric.Add(absl::StrCat(Controller(one), ",result=\"success\""), one.work.done)
               .Add(absl::StrCat(Controller(one), ",result=\"error\""), one.work.failed);
         });
  OfEach(out, controllers, "controller_runtime_reconcile_errors_total", "counter", "Reconciles that failed.",
         [](Metric& metric, One one) { metric.Add(Controller(one), one.work.failed); });
  OfEach(out, controllers, "controller_runtime_max_concurrent_reconciles", "gauge", "Reconciles at once at most.",
         [](Metric& metric, One one) { metric.Add(Controller(one), one.at_once); });
  OfEach(out, controllers, "controller_runtime_reconcile_time_seconds", "histogram", "How long reconciles took.",
         [](Metric& metric, One one) { metric.AddHistogram(Controller(one), one.work.queue.worked); });
  OfEach(out, controllers, "controller_runtime_active_workers", "gauge", "Reconciles under way.",
         [](Metric& metric, One one) { metric.Add(Controller(one), one.work.queue.working); });
}

void AddQueues(std::string* out, const std::vector<ControllerReport>& controllers) {
  using One = const ControllerReport&;
  OfEach(out, controllers, "workqueue_depth", "gauge", "Keys that are due.",
         [](Metric& metric, One one) { metric.Add(Queue(one), one.work.queue.depth); });
  OfEach(out, controllers, "workqueue_adds_total", "counter", "Keys added.",
         [](Metric& metric, One one) { metric.Add(Queue(one), one.work.queue.adds); });
  OfEach(out, controllers, "workqueue_retries_total", "counter", "Keys added again after a failure.",
         [](Metric& metric, One one) { metric.Add(Queue(one), one.work.queue.retries); });
  OfEach(out, controllers, "workqueue_queue_duration_seconds", "histogram", "How long keys that were due waited.",
         [](Metric& metric, One one) { metric.AddHistogram(Queue(one), one.work.queue.queued); });
  OfEach(out, controllers, "workqueue_work_duration_seconds", "histogram", "How long keys were worked on.",
         [](Metric& metric, One one) { metric.AddHistogram(Queue(one), one.work.queue.worked); });
  OfEach(out, controllers, "workqueue_unfinished_work_seconds", "gauge",
         "How long all keys under work have been, added up.",
         [](Metric& metric, One one) { metric.Add(Queue(one), Seconds(one.work.queue.unfinished_ms)); });
  OfEach(out, controllers, "workqueue_longest_running_processor_seconds", "gauge",
         "How long the longest of them has been.",
         [](Metric& metric, One one) { metric.Add(Queue(one), Seconds(one.work.queue.longest_ms)); });
}

}  // namespace

std::string MetricsText(const RuntimeStats& stats) {
  std::string out;
  AddControllers(&out, stats.controllers);
  AddQueues(&out, stats.controllers);
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
