// The status of a KVNodePool as the verdict on it and its nodes have it, for server-side apply. Pure.
// Invariants: the same verdict and progress on the same object ask for no write; that a node dialled or left asks for
// none by itself, since of thousands one always does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "operator/reconcile/compile_cluster.h"
#include "operator/reconcile/status_fields.h"

namespace kvartal::reconcile {

// How far the nodes of one pool are with it.
struct PoolProgress {
  size_t connected = 0;  // nodes with a stream
  size_t applied = 0;    // nodes that take this pool for theirs, with what it states
  std::vector<Rejection> rejected;
  std::vector<std::string> awaited;  // nodes that have not answered
};

// What to apply; nullopt: `object`, as the server has it, says it already, but maybe for how many are connected.
std::optional<nlohmann::json> PoolStatusToApply(const nlohmann::json& object, const PoolVerdict& verdict,
                                                const PoolProgress& progress, int64_t wall_ms);
// The same, to be written in any case.
nlohmann::json WholePoolStatus(const nlohmann::json& object, const PoolVerdict& verdict, const PoolProgress& progress,
                               int64_t wall_ms);
bool ConnectedDiffers(const nlohmann::json& object, const PoolVerdict& verdict, const PoolProgress& progress);

}  // namespace kvartal::reconcile
