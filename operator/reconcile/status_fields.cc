#include "operator/reconcile/status_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "operator/kube/json_fields.h"

namespace kvartal::reconcile {
namespace {

using kube::FieldAt;
using kube::TextAt;
using nlohmann::json;

constexpr size_t kMessageBytesMax = 32768;  // of the schema
constexpr size_t kRejectedMax = 10;         // of the schema
constexpr size_t kReasonBytesMax = 1024;    // of the schema
constexpr size_t kNamedNodesMax = 3;        // the rest is counted

// Cut at the end of a character.
std::string Cut(std::string text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

const json* ConditionIn(const json& object, const std::string& type) {
  const json* conditions = FieldAt(object, {"status", "conditions"});
  if (conditions == nullptr || !conditions->is_array()) return nullptr;
  for (const json& condition : *conditions) {
    if (TextAt(condition, {"type"}) == type) return &condition;
  }
  return nullptr;
}

bool WasTrue(const json& object, const std::string& type) {
  const json* condition = ConditionIn(object, type);
  return condition != nullptr && TextAt(*condition, {"status"}) == "True" &&
         kube::NumberAt(*condition, {"observedGeneration"}) == kube::NumberAt(object, {"metadata", "generation"});
}

std::string NamedNodes(const std::vector<std::string>& nodes) {
  const size_t named = std::min(nodes.size(), kNamedNodesMax);
  std::string text = absl::StrJoin(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(named), ", ");
  if (nodes.size() > named) absl::StrAppend(&text, " and ", nodes.size() - named, " more");
  return text;
}

json RejectedField(const std::vector<Rejection>& rejected) {
  json field = json::array();
  for (const Rejection& one : rejected) {
    if (field.size() == kRejectedMax) break;
    field.push_back({{"node", one.node}, {"reason", Cut(one.reason, kReasonBytesMax)}});
  }
  return field;
}

json ConditionsField(const json& object, const std::vector<Condition>& all, int64_t generation, int64_t wall_ms) {
  const std::string now =
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", absl::FromUnixSeconds(wall_ms / 1000), absl::UTCTimeZone());
  json conditions = json::array();
  for (const Condition& condition : all) {
    const std::string status = condition.status ? "True" : "False";
    const json* known = ConditionIn(object, condition.type);
    const bool same = known != nullptr && TextAt(*known, {"status"}) == status;
    conditions.push_back({{"type", condition.type},
                          {"status", status},
                          {"reason", condition.reason},
                          {"message", Cut(condition.message, kMessageBytesMax)},
                          {"observedGeneration", generation},
                          {"lastTransitionTime", same ? TextAt(*known, {"lastTransitionTime"}) : now}});
  }
  return conditions;
}

bool ConditionsSayAlready(const json& object, std::span<const char* const> types, const json& wanted) {
  for (const char* type : types) {
    const json* known = ConditionIn(object, type);
    const auto said = std::find_if(wanted.begin(), wanted.end(),
                                   [&](const json& condition) { return TextAt(condition, {"type"}) == type; });
    if (said == wanted.end() ? known != nullptr : known == nullptr || *known != *said) return false;
  }
  return true;
}

bool SaysAlready(const json* known, const json& wanted) {
  if (known == nullptr) return false;
  for (const auto& [key, value] : wanted.items()) {
    const json* field = FieldAt(*known, {key.c_str()});
    if (field == nullptr) return false;
    if (value.is_object() ? !SaysAlready(field, value) : *field != value) return false;
  }
  return true;
}

}  // namespace kvartal::reconcile
