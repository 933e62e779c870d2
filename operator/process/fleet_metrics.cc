#include "operator/process/fleet_metrics.h"

#include "absl/strings/str_cat.h"

namespace kvartal::process {

std::string FleetText(const sync::FleetStats& fleet, const StatusWriterStats& policies, const PoolWriterStats& pools,
                      uint64_t decisions, int64_t last_decision_us) {
  std::string out;
  const auto add = [&](const char* name, const char* type, const char* what, auto value) {
    absl::StrAppend(&out, "# HELP ", name, " ", what, "\n# TYPE ", name, " ", type, "\n", name, " ", value, "\n");
  };
  add("kvartal_operator_nodes", "gauge", "Nodes of the cluster.", fleet.nodes);
  add("kvartal_operator_nodes_connected", "gauge", "Nodes with a stream.", fleet.connected);
  add("kvartal_operator_nodes_current", "gauge", "Nodes that enforce what they are to.", fleet.current);
  add("kvartal_operator_nodes_rejected", "gauge", "Nodes that refuse what they are to enforce.", fleet.rejected);
  add("kvartal_operator_nodes_away", "gauge", "Nodes of a pool without a stream.", fleet.away);
  add("kvartal_operator_streams_total", "counter", "Streams that nodes began.", fleet.streams);
  add("kvartal_operator_streams_refused_total", "counter",
      "Streams told to come again, or that were not the node they said.", fleet.streams_refused);
  add("kvartal_operator_updates_total", "counter", "Updates sent to nodes.", fleet.updates);
  add("kvartal_operator_update_objects_total", "counter", "Objects in them.", fleet.update_objects);
  add("kvartal_operator_acks_total", "counter", "Updates that a node put in force.", fleet.acks);
  add("kvartal_operator_nacks_total", "counter", "Updates that a node refused.", fleet.nacks);
  add("kvartal_operator_pods", "gauge", "Pods that are bound to a node and have not ended.", fleet.pods);
  add("kvartal_operator_pod_updates_total", "counter", "Times that a node was told of its pods.", fleet.pod_updates);
  add("kvartal_operator_nodes_without_pods", "gauge", "Nodes with more pods than a node is told of.",
      fleet.nodes_without_pods);
  add("kvartal_operator_status_writes_total", "counter", "Status of policies written.", policies.status_writes);
  add("kvartal_operator_pool_status_writes_total", "counter", "Status of pools written.", pools.status_writes);
  add("kvartal_operator_finalizer_writes_total", "counter", "Finalizers written.", policies.finalizer_writes);
  add("kvartal_operator_write_failures_total", "counter", "Writes that failed.", policies.failures + pools.failures);
  add("kvartal_operator_decisions_total", "counter", "Times that all policies were judged.", decisions);
  add("kvartal_operator_last_decision_seconds", "gauge", "How long the last judging took.",
      static_cast<double>(last_decision_us) / 1e6);
  return out;
}

std::string WatchText(const std::vector<ClusterWatch::Report>& reports, uint64_t calls_delayed) {
  std::string out;
  const auto begin = [&](const char* name, const char* type, const char* what) {
    absl::StrAppend(&out, "# HELP ", name, " ", what, "\n# TYPE ", name, " ", type, "\n");
    return name;
  };
  const char* name = begin("kvartal_operator_watch_failing", "gauge", "1 while the last list or watch has failed.");
  for (const auto& one : reports)
    absl::StrAppend(&out, name, "{resource=\"", one.resource, "\"} ", one.failing ? 1 : 0, "\n");
  name = begin("kvartal_operator_lists_total", "counter", "Lists that were asked for.");
  for (const auto& one : reports)
    absl::StrAppend(&out, name, "{resource=\"", one.resource, "\"} ", one.stats.lists, "\n");
  name = begin("kvartal_operator_watch_ends_total", "counter", "Watches that ended as they should, or broke.");
  for (const auto& one : reports) {
    absl::StrAppend(&out, name, "{resource=\"", one.resource, "\",how=\"clean\"} ", one.stats.ended, "\n");
    absl::StrAppend(&out, name, "{resource=\"", one.resource, "\",how=\"broken\"} ", one.stats.broken, "\n");
  }
  name = begin("kvartal_operator_watch_expired_total", "counter", "Versions that the server did not know any more.");
  for (const auto& one : reports)
    absl::StrAppend(&out, name, "{resource=\"", one.resource, "\"} ", one.stats.expired, "\n");
  name =
      begin("kvartal_operator_calls_delayed_total", "counter", "Calls to the API server that waited for their turn.");
  absl::StrAppend(&out, name, " ", calls_delayed, "\n");
  return out;
}

}  // namespace kvartal::process
