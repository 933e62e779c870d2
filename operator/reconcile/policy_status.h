// The status of a TenantKVPolicy as the verdict on it and the nodes have it, for server-side apply. Pure.
// Invariants: the same verdict and progress on the same object ask for no write, so a status never wakes the reconcile
// that wrote it; the time of a condition changes only when its status does; usage alone asks for no write.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "operator/reconcile/compile_cluster.h"
#include "operator/reconcile/status_fields.h"

namespace kvartal::reconcile {

// How far the nodes are with what is in force of one policy.
struct PolicyProgress {
  size_t applied = 0;  // nodes that enforce it
  std::vector<Rejection> rejected;
  std::vector<std::string> awaited;      // nodes that have not answered, or are not connected
  std::vector<std::string> above_limit;  // nodes on which it holds more than its limit
  uint64_t hbm_bytes = 0, dram_bytes = 0, nvme_bytes = 0;
};

// What to apply; nullopt: `object`, as the server has it, says it already. Carries the object's uid, so that it is not
// told of another object that was made under its name meanwhile.
std::optional<nlohmann::json> StatusToApply(const nlohmann::json& object, const PolicyVerdict& verdict,
                                            const PolicyProgress& progress, int64_t wall_ms);
// The same, to be written in any case: what it says of usage may be old.
nlohmann::json WholeStatus(const nlohmann::json& object, const PolicyVerdict& verdict, const PolicyProgress& progress,
                           int64_t wall_ms);
bool UsageDiffers(const nlohmann::json& object, const PolicyProgress& progress);

// What of a policy was in force by its status; absent: nothing, or nothing that can be read. Of the same object only:
// the spec stands in the status of the object it was taken from.
SharedPolicy InForceByStatus(const nlohmann::json& object);

}  // namespace kvartal::reconcile
