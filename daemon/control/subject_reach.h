// Which subjects of a policy nobody can be on a node: what its configuration does not let anybody be known by. Pure.
#pragma once

#include <string>
#include <vector>

#include "daemon/policy/policy_table.h"

namespace kvartal::control {

// What a node knows clients by.
struct NodeIdentities {
  bool uids = true;
  bool tokens = false;             // of pods' ServiceAccounts
  std::vector<std::string> doors;  // by name
};

// A line a tenant with such subjects; it says whether any are left.
std::vector<std::string> SubjectsOfNobody(const policy::PolicyTable& table, const NodeIdentities& known);

}  // namespace kvartal::control
