// What the status of every kind of ours has in common, as JSON for server-side apply. Pure functions: any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "operator/reconcile/compile_cluster.h"

namespace kvartal::reconcile {

struct Rejection {
  std::string node, reason;
};

// The condition of this type in the status of `object`; nullptr: it has none.
const nlohmann::json* ConditionIn(const nlohmann::json& object, const std::string& type);
// Whether the status of `object` says True of it, and of its present generation.
bool WasTrue(const nlohmann::json& object, const std::string& type);
// The first few, and how many more.
std::string NamedNodes(const std::vector<std::string>& nodes);
// The first few, as much of each as the schema takes.
nlohmann::json RejectedField(const std::vector<Rejection>& rejected);
// The time of a condition changes only when its status does: `object` says what that was.
nlohmann::json ConditionsField(const nlohmann::json& object, const std::vector<Condition>& all, int64_t generation,
                               int64_t wall_ms);

// Whether `object` has just these conditions of `types`. Those of other types are other writers'.
bool ConditionsSayAlready(const nlohmann::json& object, std::span<const char* const> types,
                          const nlohmann::json& wanted);
// Whether each of our fields says in `known` what it is to say. Fields of others, in it and beside it, are theirs.
bool SaysAlready(const nlohmann::json* known, const nlohmann::json& wanted);

}  // namespace kvartal::reconcile
