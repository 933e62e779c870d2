#include "operator/reconcile/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "crds/claim_check.h"
#include "crds/grant_check.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::reconcile {
namespace {

std::string OwnerOf(const crds::TenantPolicy& policy) { return absl::StrCat(policy.ns, "/", policy.name); }

std::string SubjectKey(const crds::TenantPolicy& policy, const crds::Subject& subject) {
  return absl::StrCat(policy.ns, "/", subject.service_account_name);
}

uint64_t Guarantee(const crds::TierClaim& claim, uint64_t capacity_bytes) {
  return claim.guarantee ? claim.guarantee->Resolve(capacity_bytes) : 0;
}

// Percentages of a tier that its pool does not state are of each node's own, so that only their sum counts: they are
// added up as parts of this.
constexpr uint64_t kUnstatedBytes = uint64_t{1} << 50;

uint64_t PromiseIn(const crds::TierClaim& claim, bool stated, uint64_t capacity_bytes) {
  if (stated) return Guarantee(claim, capacity_bytes);
  return claim.guarantee && claim.guarantee->is_percent ? claim.guarantee->Resolve(kUnstatedBytes) : 0;
}

}  // namespace

TierBytes CapacityOf(const crds::NodePool& pool) {
  return {pool.has_hbm ? pool.hbm_per_gpu.bytes : 0, pool.has_dram ? pool.dram.bytes : 0,
          pool.has_nvme ? pool.nvme.bytes : 0};
}

TierBytes GuaranteesOf(const crds::PoolClaim& claim, const crds::NodePool& pool) {
  const TierBytes capacity = CapacityOf(pool);
  return {Guarantee(claim.hbm, capacity.hbm), Guarantee(claim.dram, capacity.dram),
          Guarantee(claim.nvme, capacity.nvme)};
}

TierBytes PromisesOf(const crds::PoolClaim& claim, const crds::NodePool& pool) {
  const TierBytes capacity = CapacityOf(pool);
  return {PromiseIn(claim.hbm, true, capacity.hbm), PromiseIn(claim.dram, pool.has_dram, capacity.dram),
          PromiseIn(claim.nvme, pool.has_nvme, capacity.nvme)};
}

Admission::Admission(const ClusterState& state) {
  for (const PoolObject& object : state.pools) {
    if (object.why_unreadable.empty()) {
      pools_[object.pool.name] = &object.pool;
    } else {
      unreadable_pools_.insert(object.pool.name);
    }
  }
  for (const ClusterNamespace& ns : state.namespaces) namespaces_[ns.name] = &ns;
}

const crds::NodePool* Admission::FindPool(const std::string& name) const {
  const auto found = pools_.find(name);
  return found == pools_.end() ? nullptr : found->second;
}

const ClusterNamespace* Admission::FindNamespace(const std::string& name) const {
  const auto found = namespaces_.find(name);
  return found == namespaces_.end() ? nullptr : found->second;
}

void Admission::Add(Guarantees* guarantees, const TierBytes& bytes) {
  guarantees->hbm += bytes.hbm;
  guarantees->dram += bytes.dram;
  guarantees->nvme += bytes.nvme;
}

void Admission::Subtract(Guarantees* guarantees, const TierBytes& bytes) {
  guarantees->hbm -= bytes.hbm;
  guarantees->dram -= bytes.dram;
  guarantees->nvme -= bytes.nvme;
}

void Admission::Withdraw(const Owner& owner) {
  const auto before = in_force_.find(owner);
  if (before == in_force_.end()) return;
  for (const crds::Subject& subject : before->second->subjects) subjects_.erase(SubjectKey(*before->second, subject));
  for (const crds::PoolClaim& claim : before->second->pools) {
    const auto guarantees = guarantees_.find(claim.pool_ref);
    if (guarantees == guarantees_.end()) continue;
    const auto mine = guarantees->second.of.find(owner);
    if (mine == guarantees->second.of.end()) continue;
    Subtract(&guarantees->second, mine->second);
    guarantees->second.of.erase(mine);
  }
  in_force_.erase(before);
}

void Admission::PutInForce(const SharedPolicy& shared) {
  const crds::TenantPolicy& policy = *shared;
  const Owner owner = OwnerOf(policy);
  Withdraw(owner);
  for (const crds::Subject& subject : policy.subjects) {
    if (!subject.service_account_name.empty())
      KV_CHECK(subjects_.try_emplace(SubjectKey(policy, subject), owner).first->second == owner);
  }
  for (const crds::PoolClaim& claim : policy.pools) {
    const crds::NodePool* pool = FindPool(claim.pool_ref);
    if (pool == nullptr) continue;
    const TierBytes bytes = PromisesOf(claim, *pool);
    if (guarantees_[claim.pool_ref].of.emplace(owner, bytes).second) Add(&guarantees_[claim.pool_ref], bytes);
  }
  in_force_.emplace(owner, shared);
}

std::vector<std::string> Admission::Unresolved(const crds::TenantPolicy& policy) const {
  std::vector<std::string> missing;
  if (FindNamespace(policy.ns) == nullptr)
    missing.push_back(absl::StrCat("metadata.namespace: the namespace '", policy.ns, "' is not known yet"));
  for (size_t i = 0; i < policy.pools.size(); ++i) {
    const std::string& name = policy.pools[i].pool_ref;
    if (FindPool(name) != nullptr) continue;
    const std::string field = absl::StrCat("spec.pools[", i, "].poolRef: ");
    missing.push_back(unreadable_pools_.contains(name)
                          ? absl::StrCat(field, "KVNodePool '", name, "' cannot be read; the operator's log says why")
                          : absl::StrCat(field, "there is no KVNodePool '", name, "'; create it or correct the name"));
  }
  return missing;
}

Verdict Admission::JudgeSubjects(const crds::TenantPolicy& policy) const {
  Verdict verdict;
  for (size_t i = 0; i < policy.subjects.size(); ++i) {
    const std::string& account = policy.subjects[i].service_account_name;
    const auto owner = subjects_.find(SubjectKey(policy, policy.subjects[i]));
    if (account.empty() || owner == subjects_.end() || owner->second == OwnerOf(policy)) continue;
    verdict.reason = "SubjectClaimed";
    verdict.findings.push_back(absl::StrCat("spec.subjects[", i, "]: service account '", account,
                                            "' belongs to TenantKVPolicy ", owner->second,
                                            ", which was there first; remove it here or there"));
  }
  return verdict;
}

Verdict Admission::JudgeGrants(const crds::TenantPolicy& policy) const {
  Verdict verdict;
  const ClusterNamespace* ns = FindNamespace(policy.ns);
  const Labels labels = ns == nullptr ? Labels() : ns->labels;
  const auto find = [&](const char* reason, std::vector<std::string> found) {
    if (!found.empty() && verdict.reason.empty()) verdict.reason = reason;
    verdict.findings.insert(verdict.findings.end(), found.begin(), found.end());
  };
  for (const crds::PoolClaim& claim : policy.pools) {
    const crds::NodePool* pool = FindPool(claim.pool_ref);
    if (pool == nullptr) continue;
    const TierBytes stated = CapacityOf(*pool);
    // Of memory and disk what is not stated is whatever a node has; HBM that is not stated is none.
    crds::PoolCapacity capacity = {.hbm_bytes = stated.hbm,
                                   .dram_bytes = pool->has_dram ? stated.dram : crds::kUnknownCapacityBytes,
                                   .nvme_bytes = pool->has_nvme ? stated.nvme : crds::kUnknownCapacityBytes};
    std::vector<std::string> above = crds::PolicyViolations(*pool, policy, labels, capacity);
    if (!above.empty()) {
      find("AboveGrant", std::move(above));
      continue;
    }
    // No node is told of grants: what cannot be decided here is decided nowhere.
    capacity.node_decides = false;
    find("CapacityNotStated", crds::PolicyViolations(*pool, policy, labels, capacity));
  }
  return verdict;
}

Admission::Guarantees Admission::OfOthers(const std::string& pool, const Owner& owner) const {
  Guarantees others;
  const auto found = guarantees_.find(pool);
  if (found == guarantees_.end()) return others;
  others.hbm = found->second.hbm;
  others.dram = found->second.dram;
  others.nvme = found->second.nvme;
  if (const auto mine = found->second.of.find(owner); mine != found->second.of.end()) Subtract(&others, mine->second);
  return others;
}

TierBytes Admission::OfOwner(const std::string& pool, const Owner& owner) const {
  const auto found = guarantees_.find(pool);
  if (found == guarantees_.end()) return {};
  const auto mine = found->second.of.find(owner);
  return mine == found->second.of.end() ? TierBytes{} : mine->second;
}

Verdict Admission::JudgeCapacity(const crds::TenantPolicy& policy) const {
  Verdict verdict;
  for (size_t i = 0; i < policy.pools.size(); ++i) {
    const crds::PoolClaim& claim = policy.pools[i];
    const crds::NodePool* pool = FindPool(claim.pool_ref);
    if (pool == nullptr) continue;
    const TierBytes capacity = CapacityOf(*pool), promised = PromisesOf(claim, *pool);
    const TierBytes before = OfOwner(pool->name, OwnerOf(policy));
    const Guarantees others = OfOthers(pool->name, OwnerOf(policy));
    const auto find = [&](const char* reason, const std::string& field, const std::string& what) {
      if (verdict.reason.empty()) verdict.reason = reason;
      verdict.findings.push_back(absl::StrCat("spec.pools[", i, "].", field, ".guarantee: ", what));
    };
    // What it has by now is not taken back for what others have by now.
    const auto left_of = [](uint64_t of, uint64_t was, Sum theirs) {
      return std::max(was, theirs >= of ? 0 : of - static_cast<uint64_t>(theirs));
    };
    const auto check = [&](const char* field, const crds::TierClaim& asked, uint64_t of, uint64_t mine, uint64_t was,
                           Sum theirs) {
      const uint64_t left = left_of(of, was, theirs);
      if (mine > left) {
        find("NoCapacity", field,
             absl::StrCat(mine, " bytes do not fit: of the ", of, " bytes of KVNodePool ", pool->name, " ", left,
                          " are not guaranteed to others; lower it to that"));
      } else if (crds::Resolve(asked, of).fit == crds::ClaimFit::kAboveLimit) {
        find("AboveLimit", field,
             absl::StrCat(mine, " bytes are above the limit, which is ", asked.limit->Resolve(of), " bytes of the ", of,
                          " of KVNodePool ", pool->name, "; lower it, or raise the limit"));
      }
    };
    const auto check_unstated = [&](const char* field, const crds::TierClaim& asked, uint64_t mine, uint64_t was,
                                    Sum theirs) {
      const uint64_t left = left_of(kUnstatedBytes, was, theirs);
      if (mine <= left) return;
      find("NoCapacity", field,
           absl::StrCat(asked.guarantee->percent, "% do not fit: of KVNodePool ", pool->name, " ",
                        left * 100 / kUnstatedBytes, "% are not guaranteed to others; lower it to that"));
    };
    // Not stated is no hbm, and whatever a node has of the others.
    check("perGpu.hbm", claim.hbm, capacity.hbm, promised.hbm, before.hbm, others.hbm);
    if (pool->has_dram) {
      check("perNode.dram", claim.dram, capacity.dram, promised.dram, before.dram, others.dram);
    } else {
      check_unstated("perNode.dram", claim.dram, promised.dram, before.dram, others.dram);
    }
    if (pool->has_nvme) {
      check("perNode.nvme", claim.nvme, capacity.nvme, promised.nvme, before.nvme, others.nvme);
    } else {
      check_unstated("perNode.nvme", claim.nvme, promised.nvme, before.nvme, others.nvme);
    }
  }
  return verdict;
}

Verdict Admission::JudgeStated(const crds::TenantPolicy& policy) const {
  Verdict verdict;
  for (size_t i = 0; i < policy.pools.size(); ++i) {
    const crds::NodePool* pool = FindPool(policy.pools[i].pool_ref);
    if (pool == nullptr) continue;
    const auto check = [&](bool stated, const char* tier, const crds::TierClaim& asked) {
      if (stated || !asked.guarantee || *asked.guarantee == crds::Quantity{}) return;
      if (asked.guarantee->is_percent && (!asked.limit || asked.limit->is_percent)) return;
      verdict.reason = "CapacityNotStated";
      verdict.findings.push_back(absl::StrCat(
          "spec.pools[", i, "].perNode.", tier, ".guarantee: KVNodePool ", pool->name, " does not state its ", tier,
          ", so that nobody can tell whether it fits; state spec.capacity.", tier, " there, or ask for percentages"));
    };
    check(pool->has_dram, "dram", policy.pools[i].dram);
    check(pool->has_nvme, "nvme", policy.pools[i].nvme);
  }
  return verdict;
}

Verdict Admission::JudgeCount(const crds::TenantPolicy& policy) const {
  Verdict verdict;
  for (size_t i = 0; i < policy.pools.size(); ++i) {
    const auto there = guarantees_.find(policy.pools[i].pool_ref);
    if (there == guarantees_.end()) continue;
    const size_t others = there->second.of.size() - there->second.of.count(OwnerOf(policy));
    if (others < kTenantsMax) continue;
    verdict.reason = "PoolFull";
    verdict.findings.push_back(absl::StrCat("spec.pools[", i, "].poolRef: KVNodePool ", policy.pools[i].pool_ref,
                                            " has ", others, " tenants, and a node takes no more than ", kTenantsMax,
                                            "; claim another pool"));
  }
  return verdict;
}

Verdict Admission::Judge(const crds::TenantPolicy& policy) const {
  for (const Verdict& verdict :
       {JudgeSubjects(policy), JudgeGrants(policy), JudgeCapacity(policy), JudgeStated(policy), JudgeCount(policy)}) {
    if (!verdict.reason.empty()) return verdict;
  }
  return {};
}

}  // namespace kvartal::reconcile
