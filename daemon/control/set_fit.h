// What a node takes of a set the operator offers: tenant by tenant, so that no tenant's policy stands in the way of
// another's. Pure.
// Invariants: what is held afterwards is what is in force, object by object; every object that is offered is held or
// refused; a reason speaks of its object and of the node, of no other tenant.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "crds/policy_set.h"
#include "daemon/base/status.h"
#include "daemon/control/policy_source.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::control {

struct SetFit {
  crds::PolicySet held;
  LoadedPolicy loaded;  // of what is held
  std::vector<sync::v1::Refused> refused;
};

// `held` is in force, and holds together at the capacity `begun`; nullopt: the daemon begins, and nothing is. An error:
// the set cannot be read as a whole, since its KVNodePool cannot.
absl::StatusOr<SetFit> FitSet(const crds::PolicySet& held, const crds::PolicySet& offered,
                              const policy::NodeCapacity& configured, const std::optional<policy::NodeCapacity>& begun);

// As much of a reason as travels, cut at the end of a character.
std::string CutReason(std::string reason);

}  // namespace kvartal::control
