// Reads manifests: a YAML stream of TenantKVPolicy and KVNodePool objects. Never throws; every error names file, line,
// column, field and what is allowed. Any input is safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "crds/node_pool.h"
#include "crds/tenant_policy.h"
#include "daemon/base/status.h"

namespace kvartal::crds {

struct Manifests {
  std::vector<TenantPolicy> policies;
  std::vector<NodePool> pools;
};

absl::StatusOr<Manifests> ParseManifests(std::string_view yaml, const std::string& file_name);
// metadata.uid of the one object in it, whatever else is wrong with that; "" when it has none.
std::string UidIn(std::string_view yaml);

}  // namespace kvartal::crds
