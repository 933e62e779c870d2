// Where policy comes from. The file source reads every *.yaml of a folder as TenantKVPolicy or KVNodePool manifests.
// Confined to the thread that calls it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::crds {
struct Manifests;
}

namespace kvartal::control {

struct LoadedPolicy {
  std::shared_ptr<const policy::PolicyTable> table;
  std::vector<std::string> warnings;
};

// Paths of the manifests in `folder`, sorted. Hidden names are left out: a mounted ConfigMap keeps its bookkeeping in
// them.
absl::StatusOr<std::vector<std::string>> ManifestsIn(const std::string& folder);
// An invalid file, or a policy above the grant of its namespace, refuses the whole set: the error names file, line,
// field and reason.
absl::StatusOr<LoadedPolicy> LoadPolicyFiles(const std::vector<std::string>& paths,
                                             const policy::NodeCapacity& capacity);
// What was read already.
absl::StatusOr<LoadedPolicy> LoadManifests(crds::Manifests manifests, const policy::NodeCapacity& capacity);
absl::StatusOr<LoadedPolicy> LoadPolicyFolder(const std::string& folder, const policy::NodeCapacity& capacity);

}  // namespace kvartal::control
