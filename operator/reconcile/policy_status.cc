#include "operator/reconcile/policy_status.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "crds/manifest_writer.h"
#include "operator/kube/json_fields.h"
#include "operator/reconcile/object_reader.h"
#include "operator/reconcile/status_fields.h"

namespace kvartal::reconcile {
namespace {

using kube::FieldAt;
using kube::NumberAt;
using kube::TextAt;
using nlohmann::json;

constexpr const char* kOurConditions[] = {"Ready",      "Accepted",    "ResolvedRefs",
                                          "Programmed", "WithinQuota", "GuaranteeMet"};

const Condition* Find(const std::vector<Condition>& conditions, const std::string& type) {
  const auto found =
      std::find_if(conditions.begin(), conditions.end(), [&](const Condition& one) { return one.type == type; });
  return found == conditions.end() ? nullptr : &*found;
}

bool IsAccepted(const PolicyVerdict& verdict) {
  const Condition* accepted = Find(verdict.conditions, "Accepted");
  return accepted != nullptr && accepted->status;
}

Condition ProgrammedOf(const PolicyVerdict& verdict, const PolicyProgress& progress) {
  Condition condition = {"Programmed", false, "", ""};
  if (!IsAccepted(verdict)) {
    condition.reason = "NotAccepted";
    if (verdict.in_force) condition.message = "what was accepted before is in force: see status.inForce";
  } else if (verdict.nodes_matched == 0) {
    condition.reason = "NoNodes";
    condition.message = "no node is in a KVNodePool that this policy names";
  } else if (!progress.rejected.empty()) {
    condition.reason = "Rejected";
    condition.message = absl::StrCat("refused by ", progress.rejected.size(), " of ", verdict.nodes_matched, " nodes; ",
                                     progress.rejected[0].node, ": ", progress.rejected[0].reason);
  } else if (progress.applied < verdict.nodes_matched) {
    condition.reason = "Pending";
    condition.message = absl::StrCat(progress.applied, " of ", verdict.nodes_matched,
                                     " nodes enforce it; no answer from ", NamedNodes(progress.awaited));
  } else {
    condition.status = true;
    condition.reason = "Programmed";
  }
  return condition;
}

// All of kOurConditions that have something to say.
std::vector<Condition> AllConditions(const PolicyVerdict& verdict, const PolicyProgress& progress) {
  std::vector<Condition> all = verdict.conditions;
  all.push_back(ProgrammedOf(verdict, progress));
  if (verdict.in_force && Find(all, "GuaranteeMet") == nullptr) all.push_back({"GuaranteeMet", true, "Fits", ""});
  if (verdict.in_force) {
    all.push_back(progress.above_limit.empty()
                      ? Condition{"WithinQuota", true, "WithinLimits", ""}
                      : Condition{"WithinQuota", false, "AboveLimit",
                                  absl::StrCat("holds more than a lowered limit on ", NamedNodes(progress.above_limit),
                                               ": it drains as leases and pins end")});
  }
  Condition ready = {"Ready", true, "Ready", ""};
  for (const char* type : {"Accepted", "ResolvedRefs", "GuaranteeMet", "Programmed"}) {
    const Condition* part = Find(all, type);
    if (!ready.status || part == nullptr || part->status) continue;
    ready = {"Ready", false, part->reason, absl::StrCat(type, ": ", part->message)};
  }
  all.push_back(std::move(ready));
  return all;
}

json EffectiveOf(const PolicyVerdict& verdict) {
  json effective = json::array();
  for (const EffectiveQuota& quota : verdict.effective) {
    effective.push_back({{"poolRef", quota.pool_ref},
                         {"hbmGuaranteeBytes", quota.hbm.guarantee_bytes},
                         {"hbmLimitBytes", quota.hbm.limit_bytes},
                         {"dramGuaranteeBytes", quota.dram.guarantee_bytes},
                         {"dramLimitBytes", quota.dram.limit_bytes},
                         {"nvmeGuaranteeBytes", quota.nvme.guarantee_bytes},
                         {"nvmeLimitBytes", quota.nvme.limit_bytes}});
  }
  return effective;
}

json NodesOf(const PolicyVerdict& verdict, const PolicyProgress& progress) {
  // Of this generation: what an older one left in force is not counted.
  return {{"matched", verdict.nodes_matched},
          {"applied", IsAccepted(verdict) ? progress.applied : 0},
          {"rejected", RejectedField(progress.rejected)}};
}

json UsageOf(const PolicyProgress& progress) {
  return {{"hbmBytes", progress.hbm_bytes}, {"dramBytes", progress.dram_bytes}, {"nvmeBytes", progress.nvme_bytes}};
}

json StatusOf(const json& object, const PolicyVerdict& verdict, const PolicyProgress& progress, int64_t wall_ms) {
  const int64_t generation = NumberAt(object, {"metadata", "generation"}).value_or(0);
  json status = {{"observedGeneration", generation},
                 {"nodes", NodesOf(verdict, progress)},
                 {"effective", EffectiveOf(verdict)},
                 {"usage", UsageOf(progress)},
                 {"conditions", ConditionsField(object, AllConditions(verdict, progress), generation, wall_ms)}};
  if (verdict.accepted) status["inForce"] = json::parse(crds::WriteTenantPolicySpec(*verdict.accepted));
  return status;
}

json ObjectWith(const json& object, json status) {
  return {{"apiVersion", crds::kApiVersion},
          {"kind", "TenantKVPolicy"},
          {"metadata",
           {{"namespace", TextAt(object, {"metadata", "namespace"})},
            {"name", TextAt(object, {"metadata", "name"})},
            {"uid", TextAt(object, {"metadata", "uid"})}}},
          {"status", std::move(status)}};
}

}  // namespace

std::optional<json> StatusToApply(const json& object, const PolicyVerdict& verdict, const PolicyProgress& progress,
                                  int64_t wall_ms) {
  json status = StatusOf(object, verdict, progress, wall_ms);
  json compared = status;
  for (const char* apart : {"conditions", "usage", "inForce"}) compared.erase(apart);
  const json* known = FieldAt(object, {"status"});
  const json* in_force = FieldAt(object, {"status", "inForce"});
  const bool same_in_force = (in_force == nullptr ? json() : *in_force) == status.value("inForce", json());
  if (same_in_force && SaysAlready(known, compared) &&
      ConditionsSayAlready(object, kOurConditions, status["conditions"]))
    return std::nullopt;
  return ObjectWith(object, std::move(status));
}

json WholeStatus(const json& object, const PolicyVerdict& verdict, const PolicyProgress& progress, int64_t wall_ms) {
  return ObjectWith(object, StatusOf(object, verdict, progress, wall_ms));
}

bool UsageDiffers(const json& object, const PolicyProgress& progress) {
  return !SaysAlready(FieldAt(object, {"status", "usage"}), UsageOf(progress));
}

SharedPolicy InForceByStatus(const json& object) {
  const json* spec = FieldAt(object, {"status", "inForce"});
  if (spec == nullptr) return {};
  json as_object = object;
  as_object["spec"] = *spec;
  return ReadPolicy(as_object).wanted;
}

}  // namespace kvartal::reconcile
