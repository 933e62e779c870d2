#include "daemon/policy/compiled_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "crds/claim_check.h"
#include "crds/tenant_policy.h"
#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

using crds::kUnknownCapacityBytes;
using crds::ShownBytes;
using crds::ShownOf;

static_assert(kUnknownCapacityBytes > kNvmeBytesMax && kUnknownCapacityBytes > kDramBytesMax);

// The smallest limit under which anything at all can be stored: one extent, slab or slot.
uint64_t SmallestUsefulLimit(TierKind tier) {
  return tier == TierKind::kNvme ? kNvmeHeaderBytes + kSlotAlignBytes : kExtentAlignBytes;
}

// Confined to one CompileRules.
class Compiler {
 public:
  Compiler(const crds::TenantPolicy& policy, const NodeCapacity& capacity) : policy_(policy), capacity_(capacity) {}

  CompiledRules Compile() {
    NameIt();
    SetSubjects();
    SetQuotas();
    SetTimes();
    SetMaxEntries();
    CheckPromises();
    return std::move(compiled_);
  }

 private:
  void NameIt();
  void SetSubjects();
  void SetQuotas();
  void SetTimes();
  void SetMaxEntries();
  void CheckPromises();
  TierQuota QuotaOf(TierKind tier, const crds::TierClaim& claim);
  void RefuseGuarantee(TierKind tier, const crds::TierClaim& claim, crds::ClaimFit fit);
  void WarnOfLargeNodes(TierKind tier, const crds::TierClaim& claim);
  void WarnOfUselessLimit(TierKind tier, const crds::TierClaim& claim, uint64_t limit_bytes);
  void Error(std::string reason) { compiled_.errors.push_back(std::move(reason)); }
  void Warn(std::string reason) { compiled_.warnings.push_back(std::move(reason)); }

  const crds::TenantPolicy& policy_;
  const NodeCapacity& capacity_;
  CompiledRules compiled_;
  TenantRules& rules_ = compiled_.rules;
};

void Compiler::NameIt() {
  rules_.name = absl::StrCat(policy_.ns, "/", policy_.name);
  // Half an identity would outlive the namespace it stood in.
  const bool has_uids = !policy_.uid.empty() && !policy_.namespace_uid.empty();
  rules_.uid = has_uids ? absl::StrCat(policy_.namespace_uid, "/", policy_.uid) : rules_.name;
  rules_.sla = policy_.sla_tier == "Premium" ? SlaTier::kPremium
               : policy_.sla_tier == "Basic" ? SlaTier::kBasic
                                             : SlaTier::kStandard;
  const int64_t default_weight = rules_.sla == SlaTier::kPremium ? 400 : rules_.sla == SlaTier::kStandard ? 200 : 100;
  rules_.weight = static_cast<uint32_t>(policy_.weight.value_or(default_weight));
  rules_.max_sessions = static_cast<uint32_t>(policy_.sessions_max);
}

void Compiler::SetSubjects() {
  for (const crds::Subject& subject : policy_.subjects) {
    if (subject.uid) {
      rules_.uids.push_back(*subject.uid);
    } else if (!subject.socket.empty()) {
      rules_.sockets.push_back(subject.socket);
    } else {
      // Of the policy's own namespace: whoever may write policies there vouches for nobody else's pods.
      rules_.service_accounts.push_back(absl::StrCat(policy_.ns, "/", subject.service_account_name));
    }
  }
  if (policy_.subjects.empty()) Warn("spec.subjects is empty: nobody may attach as this tenant");
}

void Compiler::SetQuotas() {
  if (policy_.pools.size() > 1) {
    return Error(absl::StrCat(
        "spec.pools has ", policy_.pools.size(),
        " claims and it is not known which one holds on this node; keep one, or state the node's KVNodePool"));
  }
  if (policy_.pools.empty()) return Warn("spec.pools claims nothing on this node: the tenant may store nothing");
  const crds::PoolClaim& claim = policy_.pools[0];
  rules_.tier(TierKind::kHbm) = QuotaOf(TierKind::kHbm, claim.hbm);
  rules_.tier(TierKind::kDram) = QuotaOf(TierKind::kDram, claim.dram);
  rules_.tier(TierKind::kNvme) = QuotaOf(TierKind::kNvme, claim.nvme);
  if (!claim.dram.limit && !claim.dram.guarantee)
    Warn("claims no dram: nothing can be stored, since blocks enter through dram");
}

TierQuota Compiler::QuotaOf(TierKind tier, const crds::TierClaim& claim) {
  if (!claim.guarantee && !claim.limit) return {};
  const uint64_t capacity = capacity_.bytes[TierIndex(tier)];
  const crds::ResolvedClaim resolved = crds::Resolve(claim, capacity);
  const bool node_decides = capacity == kUnknownCapacityBytes && resolved.fit == crds::ClaimFit::kAboveLimit &&
                            claim.guarantee->is_percent && !claim.limit->is_percent;
  if (node_decides) {
    WarnOfLargeNodes(tier, claim);
  } else if (resolved.fit != crds::ClaimFit::kFits) {
    RefuseGuarantee(tier, claim, resolved.fit);
    return {};
  }
  WarnOfUselessLimit(tier, claim, resolved.limit_bytes);
  return {resolved.guarantee_bytes, std::min(resolved.limit_bytes, capacity)};
}

void Compiler::RefuseGuarantee(TierKind tier, const crds::TierClaim& claim, crds::ClaimFit fit) {
  const uint64_t capacity = capacity_.bytes[TierIndex(tier)];
  const bool unknown = capacity == kUnknownCapacityBytes;
  const std::string name = TierName(tier);
  const std::string guarantee = absl::StrCat(name, " guarantee ", ShownOf(*claim.guarantee, capacity));
  if (fit == crds::ClaimFit::kAboveLimit) {
    Error(absl::StrCat(guarantee, " is above the limit ", ShownOf(*claim.limit, capacity),
                       unknown ? " of any node" : absl::StrCat(" at this node's capacity ", ShownBytes(capacity)),
                       "; lower it"));
  } else if (unknown) {
    Error(absl::StrCat(guarantee, " is more than any node has; lower it"));
  } else {
    Error(absl::StrCat(guarantee, " does not fit into the capacity ", ShownBytes(capacity),
                       "; lower it or give the node more ", name));
  }
}

void Compiler::WarnOfLargeNodes(TierKind tier, const crds::TierClaim& claim) {
  const auto fits_up_to = static_cast<unsigned __int128>(claim.limit->bytes) * 100 / claim.guarantee->percent;
  Warn(absl::StrCat(TierName(tier), " guarantee ", claim.guarantee->percent, "% is above the limit ",
                    ShownBytes(claim.limit->bytes), " on a node with more than ",
                    ShownBytes(static_cast<uint64_t>(fits_up_to)), " of ", TierName(tier), ", which refuses it"));
}

void Compiler::WarnOfUselessLimit(TierKind tier, const crds::TierClaim& claim, uint64_t limit_bytes) {
  const uint64_t capacity = capacity_.bytes[TierIndex(tier)];
  const std::string name = TierName(tier);
  const uint64_t smallest = SmallestUsefulLimit(tier);
  if (claim.limit && limit_bytes == 0 && (capacity > 0 || !claim.limit->is_percent)) {
    Warn(absl::StrCat(name, " limit is 0: nothing can be stored there"));
  } else if (capacity == 0) {
    Warn(absl::StrCat(name, " is claimed and this node has none: nothing can be stored there"));
  } else if (limit_bytes < smallest) {
    Warn(absl::StrCat(name, " limit ", ShownBytes(limit_bytes), " is below ", ShownBytes(smallest),
                      ", the least that holds one block: nothing can be stored there"));
  } else if (limit_bytes > capacity) {
    Warn(absl::StrCat(name, " limit ", ShownBytes(limit_bytes), " is above the capacity; it is taken as ",
                      capacity == kUnknownCapacityBytes ? "what the node has" : ShownBytes(capacity)));
  }
}

void Compiler::SetTimes() {
  rules_.ttl_ms[TierIndex(TierKind::kHbm)] = static_cast<uint64_t>(policy_.ttl.hbm_seconds) * 1000;
  rules_.ttl_ms[TierIndex(TierKind::kDram)] = static_cast<uint64_t>(policy_.ttl.dram_seconds) * 1000;
  rules_.ttl_ms[TierIndex(TierKind::kNvme)] = static_cast<uint64_t>(policy_.ttl.nvme_seconds) * 1000;
  rules_.on_expiry = policy_.ttl.demote_on_expiry ? OnExpiry::kDemote : OnExpiry::kDelete;
  rules_.max_age_ms = static_cast<uint64_t>(policy_.max_age_seconds) * 1000;
}

// Where none is given: twice as many as its bytes hold of the smallest blocks, so that no block goes for it. Entries
// without a copy, whose memory no byte limit counts, would be bounded by nothing else.
void Compiler::SetMaxEntries() {
  uint64_t smallest_blocks = 0;
  for (const TierKind tier : {TierKind::kDram, TierKind::kNvme})
    smallest_blocks += rules_.tier(tier).limit_bytes / kSlotAlignBytes;
  if (smallest_blocks > 0) rules_.max_entries = std::min(2 * smallest_blocks, static_cast<uint64_t>(kEntriesMax));
  if (!policy_.max_entries) return;
  rules_.max_entries = static_cast<uint64_t>(*policy_.max_entries);
  if (rules_.max_entries == 0) Warn("spec.index.maxEntries is 0: nothing can be stored");
}

// What this daemon cannot keep is refused where it guards data and stated where it only helps.
void Compiler::CheckPromises() {
  rules_.encrypt_nvme = policy_.encrypt_nvme;
  if (policy_.encrypt_nvme && rules_.tier(TierKind::kNvme).limit_bytes > 0 && !capacity_.encrypts_nvme) {
    Error(
        "spec.encryption.nvme is Required and this node has no keys; give it some (nvmeKeyFile in its configuration), "
        "remove the nvme claim, or set it to None");
  }
  std::vector<std::string> idle;
  if (!policy_.gpu_group.empty()) idle.push_back("isolation.gpuGroup");
  if (policy_.dedicated_mover) idle.push_back("isolation.dedicatedMover");
  if (!policy_.share_group.empty()) idle.push_back("isolation.shareGroup");
  if (!policy_.codecs.empty()) idle.push_back("codecs");
  if (!idle.empty()) Warn(absl::StrCat("without effect on this node: spec.", absl::StrJoin(idle, ", spec.")));
}

}  // namespace

CompiledRules CompileRules(const crds::TenantPolicy& policy, const NodeCapacity& capacity) {
  return Compiler(policy, capacity).Compile();
}

}  // namespace kvartal::policy
