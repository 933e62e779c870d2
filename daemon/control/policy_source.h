// Where policy comes from. The file source reads every *.yaml and *.yml of a folder, not of its subfolders, as
// TenantKVPolicy or KVNodePool manifests.
// Confined to the thread that calls it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::crds {
struct Manifests;
struct NodePool;
struct TenantPolicy;
}  // namespace kvartal::crds

namespace kvartal::control {

struct LoadedPolicy {
  std::shared_ptr<const policy::PolicyTable> table;
  std::vector<std::string> warnings;
  // Of a stream, whose sets are taken tenant by tenant: what was offered and is not in force, and why; "": all is.
  std::string refused;
  // A KVNodePool states a capacity that is taken at the next start, and that start finds it.
  bool capacity_waits = false;
  std::string pool = "";  // the set's KVNodePool and where it stands; "": it has none
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

// What of `pool` holds on a node: its capacity. The rest is said.
void BoundByPool(const crds::NodePool& pool, policy::NodeCapacity* capacity, std::vector<std::string>* warnings);
// Why a capacity that is stated is not in force: what differs.
std::string CapacityWaits(const policy::NodeCapacity& stated, const policy::NodeCapacity& begun);
// Leaves each policy the one claim that is on this node's pool.
void KeepClaimsOn(const crds::NodePool& pool, std::vector<crds::TenantPolicy>* policies,
                  std::vector<std::string>* warnings);

}  // namespace kvartal::control
