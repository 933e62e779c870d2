#include "crds/grant_check.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvartal::crds {
namespace {

int RankOf(const std::string& sla_tier) { return sla_tier == "Premium" ? 2 : sla_tier == "Standard" ? 1 : 0; }

std::string Shown(const Quantity& size, uint64_t capacity_bytes) {
  if (!size.is_percent) return absl::StrCat(size.bytes, " bytes");
  if (capacity_bytes == kUnknownCapacityBytes) return ShownOf(size, capacity_bytes);
  return absl::StrCat(size.percent, "% (", size.Resolve(capacity_bytes), " bytes)");
}

// One tier of one claim against one grant.
struct TierQuestion {
  std::string field;  // "spec.pools[0].perNode.dram"
  const char* tier;   // "dram"
  const TierClaim* claim;
  const std::optional<Quantity>* max_guarantee;
  const std::optional<Quantity>* max_limit;
  uint64_t capacity_bytes;
  bool node_decides;
};

void CheckTier(const TierQuestion& ask, const std::string& grant, std::vector<std::string>* violations) {
  if (!ask.claim->guarantee && !ask.claim->limit) return;
  const auto check = [&](const char* key, const std::optional<Quantity>& asked, const std::optional<Quantity>& bound,
                         const char* bound_key) {
    if (!asked || !bound) return;
    if (ask.capacity_bytes == kUnknownCapacityBytes && asked->is_percent != bound->is_percent) {
      if (ask.node_decides) return;
      violations->push_back(absl::StrCat(ask.field, ".", key, ": ", Shown(*asked, ask.capacity_bytes), " and ",
                                         bound_key, ".", ask.tier, " ", Shown(*bound, ask.capacity_bytes), " of ",
                                         grant, " can be compared only where the pool states spec.capacity.", ask.tier,
                                         "; state it"));
      return;
    }
    if (asked->Resolve(ask.capacity_bytes) <= bound->Resolve(ask.capacity_bytes)) return;
    violations->push_back(absl::StrCat(ask.field, ".", key, ": ", Shown(*asked, ask.capacity_bytes), " is above ",
                                       bound_key, ".", ask.tier, " ", Shown(*bound, ask.capacity_bytes), " of ", grant,
                                       "; lower it"));
  };
  check("guarantee", ask.claim->guarantee, *ask.max_guarantee, "maxGuarantee");
  check("limit", ask.claim->limit, *ask.max_limit, "maxLimit");
  // Without a limit of its own the tier's whole capacity is the limit.
  if (ask.claim->limit || !*ask.max_limit || (*ask.max_limit)->Resolve(ask.capacity_bytes) >= ask.capacity_bytes)
    return;
  violations->push_back(absl::StrCat(ask.field, ".limit: is absent, which means the whole capacity, and maxLimit.",
                                     ask.tier, " of ", grant, " is ", Shown(**ask.max_limit, ask.capacity_bytes),
                                     "; state a limit"));
}

void CheckGroup(const char* field, const std::string& asked, const std::vector<std::string>& granted,
                const std::string& grant, std::vector<std::string>* violations) {
  if (asked.empty() || std::find(granted.begin(), granted.end(), asked) != granted.end()) return;
  violations->push_back(
      absl::StrCat(field, ": '", asked, "' is not granted by ", grant, ", which has ",
                   granted.empty() ? std::string("none") : absl::StrCat("'", absl::StrJoin(granted, "', '"), "'")));
}

std::vector<std::string> Against(const Grant& grant, const std::string& grant_name, const TenantPolicy& policy,
                                 size_t claim_index, const PoolCapacity& capacity) {
  std::vector<std::string> violations;
  if (RankOf(policy.sla_tier) > RankOf(grant.max_sla_tier)) {
    violations.push_back(absl::StrCat("spec.slaTier: ", policy.sla_tier, " is above maxSlaTier ", grant.max_sla_tier,
                                      " of ", grant_name));
  }
  const PoolClaim& claim = policy.pools[claim_index];
  const std::string field = absl::StrCat("spec.pools[", claim_index, "].");
  const GrantBound& guarantee = grant.max_guarantee;
  const GrantBound& limit = grant.max_limit;
  const TierQuestion questions[] = {
      {field + "perGpu.hbm", "hbm", &claim.hbm, &guarantee.hbm, &limit.hbm, capacity.hbm_bytes, capacity.node_decides},
      {field + "perNode.dram", "dram", &claim.dram, &guarantee.dram, &limit.dram, capacity.dram_bytes,
       capacity.node_decides},
      {field + "perNode.nvme", "nvme", &claim.nvme, &guarantee.nvme, &limit.nvme, capacity.nvme_bytes,
       capacity.node_decides},
  };
  for (const TierQuestion& question : questions) CheckTier(question, grant_name, &violations);
  CheckGroup("spec.isolation.gpuGroup", policy.gpu_group, grant.gpu_groups, grant_name, &violations);
  CheckGroup("spec.isolation.shareGroup", policy.share_group, grant.share_groups, grant_name, &violations);
  return violations;
}

}  // namespace

bool Matches(const Grant& grant, const std::map<std::string, std::string>& namespace_labels) {
  return std::all_of(grant.match_labels.begin(), grant.match_labels.end(), [&](const auto& wanted) {
    const auto found = namespace_labels.find(wanted.first);
    return found != namespace_labels.end() && found->second == wanted.second;
  });
}

std::vector<std::string> PolicyViolations(const NodePool& pool, const TenantPolicy& policy,
                                          const std::map<std::string, std::string>& namespace_labels,
                                          const PoolCapacity& capacity) {
  const auto claim = std::find_if(policy.pools.begin(), policy.pools.end(),
                                  [&](const PoolClaim& candidate) { return candidate.pool_ref == pool.name; });
  if (pool.grants.empty() || claim == policy.pools.end()) return {};
  const size_t claim_index = static_cast<size_t>(claim - policy.pools.begin());
  std::optional<std::vector<std::string>> nearest;
  for (size_t i = 0; i < pool.grants.size(); ++i) {
    if (!Matches(pool.grants[i], namespace_labels)) continue;
    const std::string grant_name =
        absl::StrCat("spec.grants[", i, "] of KVNodePool ", pool.name, " (", pool.source, ")");
    std::vector<std::string> violations = Against(pool.grants[i], grant_name, policy, claim_index, capacity);
    if (violations.empty()) return {};
    if (!nearest || violations.size() < nearest->size()) nearest = std::move(violations);
  }
  if (nearest) return *std::move(nearest);
  return {absl::StrCat("metadata.namespace: no grant of KVNodePool ", pool.name, " (", pool.source,
                       ") is for namespace ", policy.ns, "; add one")};
}

}  // namespace kvartal::crds
