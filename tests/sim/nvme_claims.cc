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

// No block goes for its age, or waits for a key: what is there or not is a question of space alone.
policy::TenantRules RulesForAll(const policy::TenantRules& rules, const Plan& plan, uint64_t guaranteed_parts) {
  policy::TenantRules out = rules;
  out.ttl_ms = {};
  out.max_age_ms = 0;
  out.encrypt_nvme = false;
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
  // What is stored in a round is recorded before the next, by a catalog that takes few records a tick, too.
  const uint32_t ticks_a_round = plan_.catalog_queue_max > 0 ? 1 + 4 * kClaimChain / plan_.catalog_queue_max : 1;
  const auto end_round = [&] {
    for (uint32_t tick = 0; tick < ticks_a_round && !findings_.any(); ++tick) {
      if (tick > 0) node_.CompleteAll();
      Tick();
    }
  };
  for (uint32_t round = 0; round < kClaimNumbers / kClaimChain && !findings_.any(); ++round) {
    Store(borrows, 1 - size, chain(round));
    end_round();
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
    end_round();
  }
  for (int ticks = 0; ticks < kClaimRestTicks && charged() + missed < wanted && !findings_.any(); ++ticks) {
    node_.CompleteAll();
    Tick();
  }
  // A guarantee is of space: how fast the disk may be written to is another matter.
  if (findings_.any() || plan_.disk_lies() || plan_.write_budget > 0) return;
  coverage_.Note(Situation::kNvmeClaimed);
  if (charged() + missed < wanted) {
    Wrong(absl::StrCat(model_.life(claims).rules.uid, " wanted all of the ", wanted,
                       " bytes of nvme it is guaranteed, and got ", charged()));
  }
}

// A limit is lowered under what clients hold there and renew for ever, and nothing else happens: they keep what they
// hold for a lease at most.
void Simulation::DrainUnderHolds(TierKind tier) {
  std::vector<size_t> holding;
  for (size_t i = 0; i < leases_.size(); ++i) {
    const bool there = std::any_of(leases_[i].blocks.begin(), leases_[i].blocks.end(),
                                   [&](const Held& held) { return held.hold.in_place == (tier == TierKind::kDram); });
    if (there) holding.push_back(i);
  }
  if (holding.empty()) return;
  const uint32_t index = leases_[random_.Pick(holding)].life;
  const Life& life = model_.life(index);
  const auto bytes = [&] { return StatsOf(node_.engine().stats(), life.id)->tiers[TierIndex(tier)].charged_bytes; };
  if (!life.in_policy || life.dropping || life.scribbles || !node_.recovered() || catalog_failed_) return;
  if (random_.Chance(50)) {
    for (const Unfinished& item : std::exchange(unfinished_, {})) FinishOne(item);
  }
  if (findings_.any()) return;
  const uint64_t charged = bytes();
  if (charged == 0) return;
  policy::TenantRules rules = life.rules;
  rules.tier(tier).limit_bytes = charged / 4;
  rules.tier(tier).guarantee_bytes = std::min(rules.tier(tier).guarantee_bytes, charged / 4);
  ChangeRules(index, rules);
  // Memory goes extent by extent.
  uint64_t left = charged;
  for (int stuck = 0; left > charged / 4 && stuck < kDrainTicks && life.in_policy && !findings_.any(); ++stuck) {
    node_.CompleteAll();
    Tick();
    if (tier == TierKind::kDram && bytes() < left) stuck = 0;
    left = bytes();
  }
  if (findings_.any() || !life.in_policy) return;
  if (left > charged / 4)
    Wrong(absl::StrCat(life.rules.uid, " holds ", left, " bytes of ", TierName(tier),
                       " long after its limit was lowered to ", charged / 4));
}

}  // namespace kvartal::sim
