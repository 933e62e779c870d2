// Where policy comes from. The file source reads every *.yaml of a folder as TenantKVPolicy or KVNodePool manifests.
// Confined to the thread that calls it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::control {

struct LoadedPolicy {
  std::shared_ptr<const policy::PolicyTable> table;
  std::vector<std::string> warnings;
};

// An invalid file refuses the whole set: the error names file, line, field and reason.
absl::StatusOr<LoadedPolicy> LoadPolicyFolder(const std::string& folder, const policy::NodeCapacity& capacity);

}  // namespace kvartal::control
