#include "daemon/control/policy_source.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crds/grant_check.h"
#include "crds/manifest.h"
#include "crds/yaml_reader.h"
#include "daemon/base/limits.h"

namespace kvartal::control {
namespace {

absl::StatusOr<crds::Manifests> ReadAll(const std::vector<std::string>& paths) {
  crds::Manifests all;
  std::vector<std::string> errors;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> text = crds::ReadYamlFile(path);
    absl::StatusOr<crds::Manifests> read = text.ok() ? crds::ParseManifests(*text, path) : text.status();
    if (!read.ok()) {
      errors.emplace_back(read.status().message());
      continue;
    }
    std::move(read->policies.begin(), read->policies.end(), std::back_inserter(all.policies));
    std::move(read->pools.begin(), read->pools.end(), std::back_inserter(all.pools));
  }
  if (!errors.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  return all;
}

// Refuses policies above their grant. A folder has no Namespace objects: of their labels only the name is known.
absl::Status CheckGrants(const crds::NodePool& pool, const std::vector<crds::TenantPolicy>& policies,
                         const policy::NodeCapacity& capacity, std::vector<std::string>* warnings) {
  std::vector<std::string> idle;
  for (size_t i = 0; i < pool.grants.size(); ++i) {
    for (const auto& [label, value] : pool.grants[i].match_labels) {
      if (label == crds::kNamespaceNameLabel) continue;
      idle.push_back(absl::StrCat(pool.source, ": KVNodePool ", pool.name, ": spec.grants[", i,
                                  "].namespaceSelector asks for the label '", label,
                                  "': a folder has no Namespace objects, so this grant is for nobody here; use ",
                                  crds::kNamespaceNameLabel));
    }
  }
  crds::PoolCapacity of;
  // The grants of a pool with GPUs are understood on a node that has none, too.
  of.hbm_bytes = pool.has_hbm ? pool.hbm_per_gpu.bytes : capacity.bytes[TierIndex(TierKind::kHbm)];
  of.dram_bytes = capacity.bytes[TierIndex(TierKind::kDram)];
  of.nvme_bytes = capacity.bytes[TierIndex(TierKind::kNvme)];
  std::vector<std::string> errors;
  for (const crds::TenantPolicy& policy : policies) {
    for (const std::string& violation :
         crds::PolicyViolations(pool, policy, {{crds::kNamespaceNameLabel, policy.ns}}, of)) {
      errors.push_back(absl::StrCat(policy.source, ": ", policy.ns, "/", policy.name, ": ", violation));
    }
  }
  // A grant that is for nobody is the likely reason, so it is told with what it leads to.
  std::vector<std::string>* const tell = errors.empty() ? warnings : &errors;
  tell->insert(errors.empty() ? tell->end() : tell->begin(), idle.begin(), idle.end());
  return errors.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

// Of those that a mounted ConfigMap has of its own nobody is told.
size_t SubfoldersOf(const std::string& folder) {
  std::error_code error;
  size_t count = 0;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code no_folder;
    if (!absl::StartsWith(entry->path().filename().string(), ".") && entry->is_directory(no_folder)) ++count;
  }
  return count;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ManifestsIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::StartsWith(name, ".") || !(absl::EndsWith(name, ".yaml") || absl::EndsWith(name, ".yml"))) continue;
    paths.push_back((std::filesystem::path(folder) / name).string());
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat(folder, ": the policy folder cannot be read: ", error.message(),
                                            "; create it, or name the one that is meant"));
  }
  if (paths.size() > kPolicyFilesMax) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": ", paths.size(),
                                                   " manifests; a policy folder may have at most ", kPolicyFilesMax,
                                                   "; put several objects in one file"));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void BoundByPool(const crds::NodePool& pool, policy::NodeCapacity* capacity, std::vector<std::string>* warnings) {
  const auto bound = [&](TierKind tier, bool stated, const crds::Quantity& size) {
    uint64_t& bytes = capacity->bytes[TierIndex(tier)];
    if (!stated || size.bytes == bytes) return;
    if (bytes == crds::kUnknownCapacityBytes) {
      bytes = size.bytes;
      return;
    }
    if (size.bytes > bytes) {
      warnings->push_back(absl::StrCat(pool.source, ": KVNodePool ", pool.name, ": states ", size.bytes, " bytes of ",
                                       TierName(tier), " and this node is configured with ", bytes, ", which holds"));
    }
    bytes = std::min(bytes, size.bytes);
  };
  bound(TierKind::kHbm, pool.has_hbm, pool.hbm_per_gpu);
  bound(TierKind::kDram, pool.has_dram, pool.dram);
  bound(TierKind::kNvme, pool.has_nvme, pool.nvme);

  std::vector<std::string> idle;
  if (pool.unknown_tenants != "Reject") idle.push_back("unknownTenants (unknown tenants are rejected)");
  if (!pool.gpu_groups.empty()) idle.push_back("gpuGroups");
  if (!pool.share_groups.empty()) idle.push_back("shareGroups");
  if (pool.nvme_write_budget) idle.push_back("nvmeWriteBudget");
  if (idle.empty()) return;
  warnings->push_back(absl::StrCat(pool.source, ": KVNodePool ", pool.name,
                                   ": without effect where policy comes from a folder: spec.",
                                   absl::StrJoin(idle, ", spec.")));
}

std::string CapacityWaits(const policy::NodeCapacity& stated, const policy::NodeCapacity& begun) {
  std::vector<std::string> changes;
  for (const TierKind tier : kAllTiers) {
    const uint64_t now = stated.bytes[TierIndex(tier)], before = begun.bytes[TierIndex(tier)];
    if (now == before) continue;
    changes.push_back(
        absl::StrCat(TierName(tier), " ", crds::ShownBytes(now), " instead of ", crds::ShownBytes(before)));
  }
  return absl::StrCat("states another capacity than at the start of the daemon, which is when it is taken: ",
                      absl::StrJoin(changes, ", "), "; restart kvartald to put it in force");
}

void KeepClaimsOn(const crds::NodePool& pool, std::vector<crds::TenantPolicy>* policies,
                  std::vector<std::string>* warnings) {
  for (crds::TenantPolicy& policy : *policies) {
    const auto elsewhere = [&](const crds::PoolClaim& claim) { return claim.pool_ref != pool.name; };
    if (!policy.pools.empty() && std::all_of(policy.pools.begin(), policy.pools.end(), elsewhere)) {
      warnings->push_back(absl::StrCat(policy.source, ": ", policy.ns, "/", policy.name, ": spec.pools[0].poolRef '",
                                       policy.pools[0].pool_ref, "' is not this node's KVNodePool '", pool.name, "' (",
                                       pool.source, ")"));
    }
    policy.pools.erase(std::remove_if(policy.pools.begin(), policy.pools.end(), elsewhere), policy.pools.end());
  }
}

absl::StatusOr<LoadedPolicy> LoadPolicyFiles(const std::vector<std::string>& paths,
                                             const policy::NodeCapacity& capacity) {
  KV_ASSIGN_OR_RETURN(crds::Manifests manifests, ReadAll(paths));
  return LoadManifests(std::move(manifests), capacity);
}

absl::StatusOr<LoadedPolicy> LoadManifests(crds::Manifests manifests, const policy::NodeCapacity& capacity) {
  LoadedPolicy loaded;
  policy::NodeCapacity bounded = capacity;
  uint32_t soft_cap_percent = policy::kSoftCapPercentDefault;
  if (manifests.pools.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(manifests.pools[1].source, ": KVNodePool ", manifests.pools[1].name,
                                                   ": a node belongs to one pool and ", manifests.pools[0].source,
                                                   " has KVNodePool ", manifests.pools[0].name, "; keep one of them"));
  }
  if (manifests.pools.size() == 1) {
    loaded.pool = absl::StrCat(manifests.pools[0].source, ": KVNodePool ", manifests.pools[0].name);
    BoundByPool(manifests.pools[0], &bounded, &loaded.warnings);
    soft_cap_percent = static_cast<uint32_t>(manifests.pools[0].soft_cap_percent);
    KV_RETURN_IF_ERROR(CheckGrants(manifests.pools[0], manifests.policies, bounded, &loaded.warnings));
    KeepClaimsOn(manifests.pools[0], &manifests.policies, &loaded.warnings);
  }
  KV_ASSIGN_OR_RETURN(loaded.table,
                      policy::PolicyTable::Build(manifests.policies, bounded, &loaded.warnings, soft_cap_percent));
  return loaded;
}

absl::StatusOr<LoadedPolicy> LoadPolicyFolder(const std::string& folder, const policy::NodeCapacity& capacity) {
  KV_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ManifestsIn(folder));
  KV_ASSIGN_OR_RETURN(LoadedPolicy loaded, LoadPolicyFiles(paths, capacity));
  if (loaded.table->tenants().empty()) {
    const size_t subfolders = SubfoldersOf(folder);
    loaded.warnings.push_back(
        absl::StrCat(folder, ": has no TenantKVPolicy: nobody may attach",
                     subfolders == 0 ? ""
                                     : absl::StrCat("; it has subfolders (", subfolders,
                                                    "), which are not looked into: name the one that is meant")));
  }
  return loaded;
}

}  // namespace kvartal::control
