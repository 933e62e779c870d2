// The status of a TenantKVPolicy as the verdict on it has it, for server-side apply. Pure.
// Invariants: the same verdict on the same object asks for no write, so a status never wakes the reconcile that wrote
// it; the time of a condition changes only when its status does.
#pragma once

#include <optional>

#include "nlohmann/json.hpp"
#include "operator/reconcile/compile_cluster.h"

namespace kvartal::reconcile {

// What to apply; nullopt: `object`, as the server has it, says it already. Carries the object's uid, so that it is not
// told of another object that was made under its name meanwhile.
std::optional<nlohmann::json> StatusToApply(const nlohmann::json& object, const PolicyVerdict& verdict,
                                            int64_t wall_ms);

}  // namespace kvartal::reconcile
