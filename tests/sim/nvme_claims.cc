// Somebody wants all that is guaranteed to it on NVMe, in blocks of one size, while a neighbour that borrows the rest
// in another size goes on storing: it gets it, wherever the free bytes lie.
#include <algorithm>
#include <utility>

#include "tests/sim/say.h"

namespace kvartal::sim {
namespace {

constexpr uint32_t kClaimChain = 16;
constexpr uint32_t kClaimNumbers = kNumbers - kScanStart;
constexpr uint32_t kClaimRounds = 3 * kClaimNumbers / kClaimChain;  // what a queue refuses is asked for again
constexpr int kDrainTicks = 250;      // a lease, a load that nobody waits for, and blocks that are dropped in parts
constexpr int kClaimRestTicks = 150;  // longer than a segment that nothing leaves is waited for

// No block goes for its age: what is there or not is a question of space alone.
policy::TenantRules RulesForAll(const policy::TenantRules& rules, const Plan& plan, uint64_t guaranteed_parts) {
  policy::TenantRules out = rules;
  out.ttl_ms = {};
  out.max_age_ms = 0;
  out.max_entries = policy::kNoLimit;
  for (const auto& [tier, capacity] :
       {std::pair{TierKind::kDram, plan.dram_bytes}, std::pair{TierKind::kNvme, plan.nvme_bytes}}) {
    out.tier(tier).limit_bytes = capacity;
    // Headers of segments are nobody's.
    out.tier(tier).guarantee_bytes = guaranteed_parts * (capacity / 2 - std::min(capacity / 2, kMiB)) / kMiB * kMiB;
  }
  return out;
}

}  // namespace

void Simulation::ClaimNvmeGuarantee() {
  const size_t nvme = TierIndex(TierKind::kNvme);
  const uint32_t claims = random_.Pick(current_);
  const uint32_t borrows = current_[claims == current_[0] ? 1 : 0];
  for (const uint32_t index : {claims, borrows}) {
    if (!model_.life(index).in_policy || plan_.tenants[model_.life(index).tenant].scribbles) return;
  }
  ChangeRules(borrows, RulesForAll(model_.life(borrows).rules, plan_, 0));
  ChangeRules(claims, RulesForAll(model_.life(claims).rules, plan_, 1));
  const auto size = static_cast<uint32_t>(random_.Below(2));
  if (!Open(claims, size) || !Open(borrows, 1 - size)) return;
  const auto chain = [first = random_.Below(kClaimNumbers / kClaimChain)](uint64_t round) {
    const uint64_t at = (first + round) % (kClaimNumbers / kClaimChain);
    return Chain{kScanStart + static_cast<uint32_t>(at) * kClaimChain, kClaimChain};
  };
  for (uint32_t round = 0; round < kClaimNumbers / kClaimChain && !findings_.any(); ++round) {
    Store(borrows, 1 - size, chain(round));
    Tick();
  }
  const uint64_t missed = NvmeBytesMissed();
  const uint64_t wanted = model_.life(claims).rules.tier(TierKind::kNvme).guarantee_bytes;
  const auto charged = [&] {
    return StatsOf(node_.engine().stats(), model_.life(claims).id)->tiers[nvme].charged_bytes;
  };
  Say("  ", model_.life(claims).rules.uid, " wants ", wanted, " bytes of nvme, has ", charged());
  for (uint32_t round = 0; round < kClaimRounds && charged() + missed < wanted && !findings_.any(); ++round) {
    Store(claims, size, chain(round));
    CheckLedger();
    Store(borrows, 1 - size, chain(kClaimRounds - round));
    CheckLedger();
    Tick();
  }
  for (int ticks = 0; ticks < kClaimRestTicks && charged() + missed < wanted && !findings_.any(); ++ticks) {
    node_.CompleteAll();
    Tick();
  }
  if (findings_.any() || plan_.disk_lies()) return;
  coverage_.Note(Situation::kNvmeClaimed);
  if (charged() + missed < wanted) {
    Wrong(absl::StrCat(model_.life(claims).rules.uid, " wanted all of the ", wanted,
                       " bytes of nvme it is guaranteed, and got ", charged()));
  }
}

// A limit on NVMe is lowered under what clients hold there and renew for ever, and nothing else happens: they keep what
// they hold for a lease at most.
void Simulation::DrainUnderHolds() {
  const size_t nvme = TierIndex(TierKind::kNvme);
  const Lease& lease = random_.Pick(leases_);
  const Life& life = model_.life(lease.life);
  const uint32_t index = lease.life;
  const auto nvme_bytes = [&] { return StatsOf(node_.engine().stats(), life.id)->tiers[nvme].charged_bytes; };
  if (!life.in_policy || life.dropping || life.scribbles || !node_.recovered() || catalog_failed_) return;
  const uint64_t charged = nvme_bytes();
  if (charged == 0) return;
  policy::TenantRules rules = life.rules;
  rules.tier(TierKind::kNvme).limit_bytes = charged / 4;
  rules.tier(TierKind::kNvme).guarantee_bytes = std::min(rules.tier(TierKind::kNvme).guarantee_bytes, charged / 4);
  ChangeRules(index, rules);
  for (int ticks = 0; ticks < kDrainTicks && !findings_.any(); ++ticks) {
    node_.CompleteAll();
    Tick();
  }
  if (findings_.any() || !life.in_policy) return;
  const uint64_t left = nvme_bytes();
  if (left > charged / 4)
    Wrong(absl::StrCat(life.rules.uid, " holds ", left, " bytes of nvme long after its limit was lowered to ",
                       charged / 4));
}

}  // namespace kvartal::sim
