// Objects as an API server sends them -> the values CompileCluster reads. The fields are read by the very functions
// that read a folder of manifests, so that the two sources of policy cannot drift apart. Pure functions: any thread.
#pragma once

#include "nlohmann/json.hpp"
#include "operator/kube/object_store.h"
#include "operator/reconcile/cluster_state.h"

namespace kvartal::reconcile {

// Without `accepted`, which is not in the object.
PolicyObject ReadPolicy(const nlohmann::json& object);
// One that cannot be read still has its nodes: the schema in the cluster is not the one this operator knows.
PoolObject ReadPool(const nlohmann::json& object);
ClusterNode ReadNode(const nlohmann::json& object);
ClusterNamespace ReadNamespace(const nlohmann::json& object);

bool IsBeingDeleted(const nlohmann::json& object);
// "true" on a policy: what was accepted of it stays in force, whatever its spec says, and nothing is written to it.
inline constexpr const char* kPausedAnnotation = "kvartal.dev/paused";
bool IsPaused(const nlohmann::json& object);

}  // namespace kvartal::reconcile
