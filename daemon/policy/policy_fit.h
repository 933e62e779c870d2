// Which rules hold on a node where not all that is wanted can be kept: tenant by tenant. Who may not have what is
// wanted keeps what is in force, and who has nothing in force is left out. Pure.
// Invariants: what comes out holds together (one owner a name, an identity and a subject; guarantees that fit; no more
// than kTenantsMax); no change of one tenant takes from another what is in force; if all that is wanted holds together,
// that is what comes out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/policy/policy_table.h"

namespace kvartal::policy {

struct TenantChange {
  std::optional<TenantRules> wanted;    // absent: it cannot be kept on this node by itself
  std::optional<TenantRules> in_force;  // of the same tenant, until now
};

struct TenantFit {
  std::optional<TenantRules> rules;  // in force from now on
  std::string refusal;               // why that is not what is wanted, where others are in the way; names none of them
};

// One for each change, in its order. REQUIRES: all that is in force holds together in this capacity. Of several that
// are new or ask for more, those that ask for most are refused first; among equals the later.
std::vector<TenantFit> FitTenants(const std::vector<TenantChange>& changes, const NodeCapacity& capacity);

}  // namespace kvartal::policy
