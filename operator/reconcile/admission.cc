#include "operator/reconcile/admission.h"

#include "absl/strings/str_cat.h"
#include "crds/grant_check.h"
#include "daemon/base/check.h"

namespace kvartal::reconcile {
namespace {

std::string OwnerOf(const crds::TenantPolicy& policy) { return absl::StrCat(policy.ns, "/", policy.name); }

std::string SubjectKey(const crds::TenantPolicy& policy, const crds::Subject& subject) {
  return absl::StrCat(policy.ns, "/", subject.service_account_name);
}

uint64_t Guarantee(const crds::TierClaim& claim, uint64_t capacity_bytes) {
  return claim.guarantee ? claim.guarantee->Resolve(capacity_bytes) : 0;
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
  for (const crds::Subject& subject : before->second.subjects) subjects_.erase(SubjectKey(before->second, subject));
  for (const crds::PoolClaim& claim : before->second.pools) {
    const auto guarantees = guarantees_.find(claim.pool_ref);
    if (guarantees == guarantees_.end()) continue;
    const auto mine = guarantees->second.of.find(owner);
    if (mine == guarantees->second.of.end()) continue;
    Subtract(&guarantees->second, mine->second);
    guarantees->second.of.erase(mine);
  }
  in_force_.erase(before);
}

void Admission::PutInForce(const crds::TenantPolicy& policy) {
  const Owner owner = OwnerOf(policy);
  Withdraw(owner);
  for (const crds::Subject& subject : policy.subjects) {
    if (!subject.service_account_name.empty())
      KV_CHECK(subjects_.try_emplace(SubjectKey(policy, subject), owner).first->second == owner);
  }
  for (const crds::PoolClaim& claim : policy.pools) {
    const crds::NodePool* pool = FindPool(claim.pool_ref);
    if (pool == nullptr) continue;
    const TierBytes bytes = GuaranteesOf(claim, *pool);
    if (guarantees_[claim.pool_ref].of.emplace(owner, bytes).second) Add(&guarantees_[claim.pool_ref], bytes);
  }
  in_force_.emplace(owner, policy);
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
  for (const crds::PoolClaim& claim : policy.pools) {
    const crds::NodePool* pool = FindPool(claim.pool_ref);
    if (pool == nullptr) continue;
    const TierBytes capacity = CapacityOf(*pool);
    std::vector<std::string> above =
        crds::PolicyViolations(*pool, policy, ns == nullptr ? Labels() : ns->labels,
                               {.hbm_bytes = capacity.hbm, .dram_bytes = capacity.dram, .nvme_bytes = capacity.nvme});
    verdict.findings.insert(verdict.findings.end(), above.begin(), above.end());
  }
  if (!verdict.findings.empty()) verdict.reason = "AboveGrant";
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
    const TierBytes capacity = CapacityOf(*pool), asked = GuaranteesOf(claim, *pool);
    const TierBytes before = OfOwner(pool->name, OwnerOf(policy));
    const Guarantees others = OfOthers(pool->name, OwnerOf(policy));
    const auto check = [&](bool stated, const char* field, uint64_t of, uint64_t mine, uint64_t was, Sum theirs) {
      if (!stated || mine <= was) return;
      const uint64_t left = theirs >= of ? 0 : of - static_cast<uint64_t>(theirs);
      if (mine <= left) return;
      verdict.reason = "NoCapacity";
      verdict.findings.push_back(absl::StrCat("spec.pools[", i, "].", field, ".guarantee: ", mine,
                                              " bytes do not fit: of the ", of, " bytes of KVNodePool ", pool->name,
                                              " ", left, " are not guaranteed to others; lower it to that"));
    };
    // Not stated is no hbm, and whatever a node has of the others.
    check(true, "perGpu.hbm", capacity.hbm, asked.hbm, before.hbm, others.hbm);
    check(pool->has_dram, "perNode.dram", capacity.dram, asked.dram, before.dram, others.dram);
    check(pool->has_nvme, "perNode.nvme", capacity.nvme, asked.nvme, before.nvme, others.nvme);
  }
  return verdict;
}

Verdict Admission::Judge(const crds::TenantPolicy& policy) const {
  for (const Verdict& verdict : {JudgeSubjects(policy), JudgeGrants(policy), JudgeCapacity(policy)}) {
    if (!verdict.reason.empty()) return verdict;
  }
  return {};
}

}  // namespace kvartal::reconcile
