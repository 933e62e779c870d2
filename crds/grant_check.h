// What the grants of a pool let a namespace ask for. Pure: folder source and operator decide by the same function.
// Invariant: a pool without grants bounds nobody; in one with grants, a policy no grant matches may have nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "crds/node_pool.h"
#include "crds/tenant_policy.h"

namespace kvartal::crds {

// What percentages of a pool are of: hbm a GPU, the rest a node. May be kUnknownCapacityBytes.
struct PoolCapacity {
  uint64_t hbm_bytes = 0, dram_bytes = 0, nvme_bytes = 0;
  // A percentage against bytes of what is unknown: a node that knows decides later. False: nobody does.
  bool node_decides = true;
};

// The label every Namespace object has, its name: the only one that is known without a cluster.
inline constexpr const char* kNamespaceNameLabel = "kubernetes.io/metadata.name";

bool Matches(const Grant& grant, const std::map<std::string, std::string>& namespace_labels);

// How `policy` is above its grant, each as "field: reason"; empty when it is not. One grant that admits all of it is
// enough; else the violations are those of the grant that comes nearest, the first among equals. A policy without a
// claim on this pool asks nothing of it.
std::vector<std::string> PolicyViolations(const NodePool& pool, const TenantPolicy& policy,
                                          const std::map<std::string, std::string>& namespace_labels,
                                          const PoolCapacity& capacity);

}  // namespace kvartal::crds
