// The version of what a node enforces: equal content, equal version, on every replica. Pure.
#pragma once

#include <string>
#include <vector>

#include "crds/node_pool.h"
#include "crds/tenant_policy.h"

namespace kvartal::reconcile {

// Of the tenants on a node of `pool`, in this order. Hex of a 128-bit hash.
std::string VersionOf(const crds::NodePool& pool, const std::vector<crds::TenantPolicy>& tenants);

}  // namespace kvartal::reconcile
