#include "operator/reconcile/pool_status.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crds/manifest_writer.h"
#include "operator/kube/json_fields.h"

namespace kvartal::reconcile {
namespace {

using kube::FieldAt;
using kube::NumberAt;
using kube::TextAt;
using nlohmann::json;

constexpr const char* kOurConditions[] = {"Ready", "Accepted"};

Condition ReadyOf(const PoolVerdict& verdict, const PoolProgress& progress) {
  const size_t matched = verdict.nodes_matched;
  if (!verdict.why_unreadable.empty()) return {"Ready", false, "Invalid", verdict.why_unreadable};
  if (matched == 0) return {"Ready", false, "NoNodes", "no node has the labels of spec.nodeSelector, or an older pool"};
  if (verdict.unmet_policies > 0) {
    return {"Ready", false, "Overcommitted",
            absl::StrCat("guarantees of ", verdict.unmet_policies,
                         " policies do not fit spec.capacity any more and are "
                         "not kept; raise it, or remove policies")};
  }
  if (!progress.rejected.empty()) {
    return {"Ready", false, "Rejected",
            absl::StrCat("refused by ", progress.rejected.size(), " of ", matched, " nodes; ",
                         progress.rejected[0].node, ": ", progress.rejected[0].reason)};
  }
  if (progress.applied < matched) {
    return {"Ready", false, "Pending",
            absl::StrCat(progress.applied, " of ", matched, " nodes apply it; no answer from ",
                         NamedNodes(progress.awaited))};
  }
  return {"Ready", true, "Ready", ""};
}

// Of a pool that cannot be read nobody is told what to apply: then how far nodes are is not told either.
json NodesField(const PoolVerdict& verdict, const PoolProgress& progress) {
  json nodes = {{"matched", verdict.nodes_matched}};
  if (!verdict.why_unreadable.empty()) return nodes;
  nodes["connected"] = progress.connected;
  nodes["applied"] = progress.applied;
  nodes["rejected"] = RejectedField(progress.rejected);
  return nodes;
}

json StatusOf(const json& object, const PoolVerdict& verdict, const PoolProgress& progress, int64_t wall_ms) {
  const int64_t generation = NumberAt(object, {"metadata", "generation"}).value_or(0);
  const bool readable = verdict.why_unreadable.empty();
  const Condition accepted = {"Accepted", readable, readable ? "Accepted" : "Invalid", verdict.why_unreadable};
  json status = {{"observedGeneration", generation},
                 {"nodes", NodesField(verdict, progress)},
                 {"conditions", ConditionsField(object, {accepted, ReadyOf(verdict, progress)}, generation, wall_ms)}};
  if (readable) {
    status["guaranteed"] = {{"hbmBytes", verdict.guaranteed.hbm},
                            {"dramBytes", verdict.guaranteed.dram},
                            {"nvmeBytes", verdict.guaranteed.nvme}};
  }
  return status;
}

json ObjectWith(const json& object, json status) {
  return {{"apiVersion", crds::kApiVersion},
          {"kind", "KVNodePool"},
          {"metadata", {{"name", TextAt(object, {"metadata", "name"})}, {"uid", TextAt(object, {"metadata", "uid"})}}},
          {"status", std::move(status)}};
}

}  // namespace

std::optional<json> PoolStatusToApply(const json& object, const PoolVerdict& verdict, const PoolProgress& progress,
                                      int64_t wall_ms) {
  json status = StatusOf(object, verdict, progress, wall_ms);
  json compared = status;
  compared.erase("conditions");
  compared["nodes"].erase("connected");
  if (SaysAlready(FieldAt(object, {"status"}), compared) &&
      ConditionsSayAlready(object, kOurConditions, status["conditions"]))
    return std::nullopt;
  return ObjectWith(object, std::move(status));
}

json WholePoolStatus(const json& object, const PoolVerdict& verdict, const PoolProgress& progress, int64_t wall_ms) {
  return ObjectWith(object, StatusOf(object, verdict, progress, wall_ms));
}

bool ConnectedDiffers(const json& object, const PoolVerdict& verdict, const PoolProgress& progress) {
  return !SaysAlready(FieldAt(object, {"status", "nodes"}), NodesField(verdict, progress));
}

}  // namespace kvartal::reconcile
