#include "operator/reconcile/policy_status.h"

#include <algorithm>

#include "absl/time/time.h"
#include "operator/kube/json_fields.h"

namespace kvartal::reconcile {
namespace {

using kube::FieldAt;
using kube::NumberAt;
using kube::TextAt;
using nlohmann::json;

constexpr const char* kOurConditions[] = {"ResolvedRefs", "Accepted", "GuaranteeMet"};
constexpr size_t kMessageBytesMax = 32768;  // of the schema

const json* ConditionIn(const json& object, const std::string& type) {
  const json* conditions = FieldAt(object, {"status", "conditions"});
  if (conditions == nullptr || !conditions->is_array()) return nullptr;
  for (const json& condition : *conditions) {
    if (TextAt(condition, {"type"}) == type) return &condition;
  }
  return nullptr;
}

// Cut at the end of a character.
std::string Cut(std::string text) {
  if (text.size() <= kMessageBytesMax) return text;
  size_t end = kMessageBytesMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text;
}

json ConditionsOf(const json& object, const PolicyVerdict& verdict, int64_t generation, int64_t wall_ms) {
  const std::string now =
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", absl::FromUnixSeconds(wall_ms / 1000), absl::UTCTimeZone());
  json conditions = json::array();
  for (const Condition& condition : verdict.conditions) {
    const std::string status = condition.status ? "True" : "False";
    const json* known = ConditionIn(object, condition.type);
    const bool same = known != nullptr && TextAt(*known, {"status"}) == status;
    conditions.push_back({{"type", condition.type},
                          {"status", status},
                          {"reason", condition.reason},
                          {"message", Cut(condition.message)},
                          {"observedGeneration", generation},
                          {"lastTransitionTime", same ? TextAt(*known, {"lastTransitionTime"}) : now}});
  }
  return conditions;
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

// Conditions of other types are other writers'.
bool ConditionsSayAlready(const json& object, const json& wanted) {
  for (const char* type : kOurConditions) {
    const json* known = ConditionIn(object, type);
    const auto said = std::find_if(wanted.begin(), wanted.end(),
                                   [&](const json& condition) { return TextAt(condition, {"type"}) == type; });
    if (said == wanted.end() ? known != nullptr : known == nullptr || *known != *said) return false;
  }
  return true;
}

// Whether each of our fields says in `known` what it is to say. Fields of others, in it and beside it, are theirs.
bool SaysAlready(const json* known, const json& wanted) {
  if (known == nullptr) return false;
  for (const auto& [key, value] : wanted.items()) {
    const json* field = FieldAt(*known, {key.c_str()});
    if (field == nullptr) return false;
    if (value.is_object() ? !SaysAlready(field, value) : *field != value) return false;
  }
  return true;
}

}  // namespace

std::optional<json> StatusToApply(const json& object, const PolicyVerdict& verdict, int64_t wall_ms) {
  const int64_t generation = NumberAt(object, {"metadata", "generation"}).value_or(0);
  json status = {{"observedGeneration", generation},
                 {"nodes", {{"matched", verdict.nodes_matched}}},
                 {"effective", EffectiveOf(verdict)}};
  json conditions = ConditionsOf(object, verdict, generation, wall_ms);
  if (SaysAlready(FieldAt(object, {"status"}), status) && ConditionsSayAlready(object, conditions)) return std::nullopt;
  status["conditions"] = std::move(conditions);
  return json{{"apiVersion", crds::kApiVersion},
              {"kind", "TenantKVPolicy"},
              {"metadata",
               {{"namespace", TextAt(object, {"metadata", "namespace"})},
                {"name", TextAt(object, {"metadata", "name"})},
                {"uid", TextAt(object, {"metadata", "uid"})}}},
              {"status", status}};
}

}  // namespace kvartal::reconcile
