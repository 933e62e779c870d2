// Objects as the manifests they would be read from. Pure functions: any thread.
// Invariant: reading what was written gives an equal object, but for where it was read and for what no manifest says.
#pragma once

#include <string>

#include "crds/node_pool.h"
#include "crds/tenant_policy.h"

namespace kvartal::crds {

// JSON, in one line. Equal objects give equal text.
std::string WriteTenantPolicy(const TenantPolicy& policy);
// Its spec alone.
std::string WriteTenantPolicySpec(const TenantPolicy& policy);
// What a node of the pool acts on: its capacity and its soft cap. Grants are judged before anything is sent to nodes.
std::string WriteNodeOfPool(const NodePool& pool);

}  // namespace kvartal::crds
