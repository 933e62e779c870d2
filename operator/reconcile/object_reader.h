// Objects as an API server sends them -> the values CompileCluster reads. The fields are read by the very functions that
// read a folder of manifests, so that the two sources of policy cannot drift apart. Pure functions: any thread.
#pragma once

#include "daemon/base/status.h"
#include "nlohmann/json.hpp"
#include "operator/reconcile/cluster_state.h"

namespace kvartal::reconcile {

// Without `accepted`, which is not in the object.
PolicyObject ReadPolicy(const nlohmann::json& object);
// InvalidArgument: the schema in the cluster is not the one this operator knows.
absl::StatusOr<PoolObject> ReadPool(const nlohmann::json& object);
ClusterNode ReadNode(const nlohmann::json& object);
ClusterNamespace ReadNamespace(const nlohmann::json& object);

}  // namespace kvartal::reconcile
