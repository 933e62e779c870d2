// One policy -> the rules it comes to on a node of some capacity, and what is wrong or odd about it by itself. What
// only a set can show is for policy_table (all of it or none) and policy_fit (tenant by tenant). Pure.
#pragma once

#include <string>
#include <vector>

#include "daemon/policy/policy_table.h"

namespace kvartal::policy {

struct CompiledRules {
  TenantRules rules;                  // worth something only without errors
  std::vector<std::string> errors;    // they speak of this policy and of the node, of no other tenant
  std::vector<std::string> warnings;  // legal, and surely not meant
};

CompiledRules CompileRules(const crds::TenantPolicy& policy, const NodeCapacity& capacity);

}  // namespace kvartal::policy
