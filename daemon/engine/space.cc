#include "daemon/engine/space.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/base/check.h"

namespace kvartal::engine {

using policy::DropReason;
using policy::Refusal;

namespace {
constexpr uint64_t kNoRequest = 0;  // requests are numbered from 1
// What a tenant of `slot_bytes` grows by at least.
uint64_t LeastDramBytes(uint32_t slot_bytes) { return RoundUp(slot_bytes, kExtentAlignBytes); }
}  // namespace

uint64_t Space::Room(const TenantState& tenant, TierKind tier) const {
  const policy::Account& account = state_.ledger.account(tenant.id, tier);
  const uint64_t used = state_.ledger.charged_bytes(tier) + state_.ledger.reclaiming_bytes(tier);
  const uint64_t capacity = state_.ledger.capacity_bytes(tier);
  const uint64_t by_limit = account.limit_bytes - std::min(account.limit_bytes, account.charged_bytes);
  const uint64_t room = std::min(by_limit, capacity - std::min(capacity, used));
  // What was just taken from somebody is not there for everybody.
  return state_.SomebodyTakes(tier) ? std::min(room, shares_.EntitledRoom(tenant, tier)) : room;
}

EntryId Space::Victim(TenantState& tenant, TierKind tier, uint64_t request) {
  return Victim(tenant, tier, request, tier::kAllDisks);
}

EntryId Space::Victim(TenantState& tenant, TierKind tier, uint64_t request, tier::DiskSet disks) {
  if (SparesNoMore(tenant, request)) return EntryId::None();
  const auto may_go = [&](EntryId id) { return !Spares(tenant, id, request) && residency_.Evictable(id, tier); };
  return residency_.First(tenant, tier, may_go, disks);
}

// A request keeps what it has used. Its number is the client's to choose, and so is how much of that there is.
bool Space::Spares(TenantState& tenant, EntryId id, uint64_t request) {
  if (request == kNoRequest || state_.index.at(id).last_touch != request) return false;
  ++tenant.spared;
  return true;
}

bool Space::SparesNoMore(TenantState& tenant, uint64_t request) {
  if (std::exchange(tenant.spared_tick, state_.NowTick()) != state_.NowTick()) tenant.spared = 0;
  return request != kNoRequest && tenant.spared >= kSparedPerTickMax;
}

EntryId Space::VictimOnTakingDisk(TenantState& tenant, uint32_t slot_bytes, uint64_t request) {
  return Victim(tenant, TierKind::kNvme, request, state_.devices.nvme->DisksThatTake(slot_bytes));
}

bool Space::IsDueForErasure(EntryId id) const { return state_.OverAge(id, state_.NowTick()); }

SpaceResult Space::TakeDram(TenantState& tenant, uint32_t slot_bytes, uint64_t request, uint32_t wanted) {
  for (uint32_t round = 0; round < kEvictionsPerReserveMax; ++round) {
    const SlotId slot = state_.devices.dram->Take(tenant.domain(), slot_bytes);
    if (slot.valid()) return {SpaceOutcome::kTaken, slot, Refusal::kNone};
    Step step = GrowDram(tenant, slot_bytes);
    if (step == Step::kStuck) step = DropExpired(tenant, TierKind::kDram);
    if (step == Step::kStuck && GiveBackEmpty(tenant) > 0) step = Step::kRetry;
    if (step == Step::kStuck && shares_.AboveCap(tenant, TierKind::kDram))
      step = EvictDram(tenant, slot_bytes, request, wanted);
    if (step == Step::kStuck) step = TakeDramFromOthers(tenant, slot_bytes);
    if (step == Step::kStuck) step = EvictDram(tenant, slot_bytes, request, wanted);
    if (step == Step::kStuck && WaitsForGuarantee(tenant, TierKind::kDram, LeastDramBytes(slot_bytes)))
      step = Step::kWait;
    if (step == Step::kWait) return {SpaceOutcome::kWait, SlotId::None(), Refusal::kNone};
    if (step == Step::kStuck) break;
  }
  return {SpaceOutcome::kRefused, SlotId::None(), DramRefusal(tenant, slot_bytes)};
}

Space::Step Space::GrowDram(TenantState& tenant, uint32_t slot_bytes) {
  if (tenant.growing[slot_bytes] > 0) return Step::kWait;
  if (tenant.grow_failed_tick == state_.NowTick()) return Step::kStuck;
  // Up to the guarantee in extents that fit it: none is half guaranteed and half borrowed, unless a policy moved the
  // line.
  const tier::DramTier& dram = *state_.devices.dram;
  const uint64_t room = Room(tenant, TierKind::kDram);
  const policy::Account& account = state_.ledger.account(tenant.id, TierKind::kDram);
  const uint64_t guaranteed = account.guarantee_bytes - std::min(account.guarantee_bytes, account.charged_bytes);
  uint64_t growth_bytes = dram.GrowthBytes(slot_bytes, std::min(room, guaranteed));
  if (growth_bytes == 0) growth_bytes = dram.GrowthBytes(slot_bytes, room);
  if (growth_bytes == 0) return Step::kStuck;
  auto charged = state_.ledger.TryCharge(tenant.id, TierKind::kDram, growth_bytes);
  if (charged.reason != Refusal::kNone) return Step::kStuck;
  ++tenant.growing[slot_bytes];
  const uint64_t growth = ++last_growth_;
  growing_[growth] = std::move(charged.charge);
  starting_growth_ = true;
  state_.devices.dram->Grow(
      tenant.domain(), slot_bytes, growth_bytes,
      [this, alive = std::weak_ptr<bool>(alive_), owner = &tenant, slot_bytes, growth](absl::Status status) {
        if (!alive.expired()) EndGrowth(*owner, slot_bytes, growth, status);
      });
  starting_growth_ = false;
  // It may have ended before Grow returned.
  return growing_.contains(growth) ? Step::kWait : Step::kRetry;
}

void Space::EndGrowth(TenantState& tenant, uint32_t slot_bytes, uint64_t growth, const absl::Status& status) {
  --tenant.growing[slot_bytes];
  policy::Charge charge = std::move(growing_.extract(growth).mapped());
  if (status.ok()) {
    charge.Settle();
  } else {
    charge = policy::Charge();
    tenant.grow_failed_tick = state_.NowTick();
  }
  // Whom it was for may be gone. Who reads ahead waits for nothing and comes again: then it goes when it is idle.
  const bool for_ahead = state_.NowTick() - tenant.ahead_waited_tick < kEmptyTicksMax;
  if (!starting_growth_ && tenant.waiters.empty() && !for_ahead) GiveBackEmpty(tenant);
  state_.Wake(tenant);
}

EntryId Space::FirstOfSize(TenantState& tenant, uint32_t slot_bytes, absl::FunctionRef<bool(EntryId)> may_go) {
  return residency_.First(tenant, TierKind::kDram, may_go, tier::kAllDisks, slot_bytes);
}

EntryId Space::LeafOfSize(TenantState& tenant, uint32_t slot_bytes, uint64_t request) {
  if (SparesNoMore(tenant, request)) return EntryId::None();
  return FirstOfSize(tenant, slot_bytes, [&](EntryId id) {
    return !Spares(tenant, id, request) && residency_.Evictable(id, TierKind::kDram);
  });
}

EntryId Space::OwnVictim(TenantState& tenant, uint32_t slot_bytes, uint64_t request, bool* may_go) {
  const EntryId leaf = LeafOfSize(tenant, slot_bytes, request);
  *may_go = leaf.valid();
  // A chain longer than the tenant's memory pushes its own blocks, and held ones, down a tier, but never out of the
  // cache.
  if (*may_go || !state_.NvmeUsable(tenant)) return leaf;
  return FirstOfSize(tenant, slot_bytes,
                     [&](EntryId id) { return residency_.Movable(id, TierKind::kDram) && !IsDueForErasure(id); });
}

Space::Step Space::EvictDram(TenantState& tenant, uint32_t slot_bytes, uint64_t request, uint32_t wanted) {
  bool may_go = false;
  EntryId victim = OwnVictim(tenant, kAnySize, request, &may_go);
  // Its slot would be of no use, and neither would all others of that size, scattered as they are.
  if (victim.valid() && state_.SlotBytesOf(state_.index.at(victim)) != slot_bytes) {
    const Step step = EmptyOwnExtent(tenant, slot_bytes, request, victim);
    if (step != Step::kStuck) return step;
    victim = OwnVictim(tenant, slot_bytes, request, &may_go);
  }
  if (victim.valid()) {
    // It is pinned, and that was its other copy.
    if (residency_.DropIfNotServed(victim) && may_go && !residency_.Evictable(victim, TierKind::kDram))
      return Step::kRetry;
    const bool copy_below = state_.index.at(victim).resident(TierKind::kNvme);
    if (!copy_below && state_.NvmeUsable(tenant)) {
      if (state_.ThatEnd(tenant.demotions_under_way) >= wanted) return Step::kWait;
      const WriteStart start = demote_(victim, DropReason::kOwnSpace);
      if (start == WriteStart::kStarted) return Step::kRetry;
      if (start == WriteStart::kLater) return Step::kWait;
      if (start == WriteStart::kQueueFull && state_.ThatEnd(tenant.writes_under_way) > 0) return Step::kWait;
    }
    if (copy_below || may_go) {
      residency_.DropCopy(victim, TierKind::kDram, DropReason::kOwnSpace);
      DropAhead(tenant, slot_bytes, request, wanted);
      return Step::kRetry;
    }
  }
  // Blocks being written become victims when the write ends; bytes being punched come back to the node.
  if (state_.ThatEnd(tenant.writes_under_way) > 0) return Step::kWait;
  const policy::Account& account = state_.ledger.account(tenant.id, TierKind::kDram);
  const bool limit_has_room = account.charged_bytes < account.limit_bytes;
  if (limit_has_room && state_.ledger.reclaiming_bytes(TierKind::kDram) > 0) return Step::kWait;
  return Step::kStuck;
}

// Slots that are free together are taken in the order of their addresses: a chain lies in memory as it is read.
void Space::DropAhead(TenantState& tenant, uint32_t slot_bytes, uint64_t request, uint32_t wanted) {
  for (uint32_t dropped = 1; dropped < std::min(wanted, kDropAheadMax); ++dropped) {
    const EntryId victim = Victim(tenant, TierKind::kDram, request);
    if (!victim.valid() || state_.SlotBytesOf(state_.index.at(victim)) != slot_bytes) return;
    if (residency_.DropIfNotServed(victim) && !residency_.Evictable(victim, TierKind::kDram)) return;
    if (!state_.index.at(victim).resident(TierKind::kNvme) && state_.NvmeUsable(tenant)) return;
    residency_.DropCopy(victim, TierKind::kDram, DropReason::kOwnSpace);
  }
}

Refusal Space::DramRefusal(const TenantState& tenant, uint32_t slot_bytes) const {
  const policy::Account& account = state_.ledger.account(tenant.id, TierKind::kDram);
  if (account.limit_bytes == 0) return Refusal::kNoTier;
  if (tenant.grow_failed_tick == state_.NowTick()) return Refusal::kOutOfMemory;
  if (state_.devices.dram->GrowthBytes(slot_bytes, account.limit_bytes) == 0) return Refusal::kTooSmall;
  const uint64_t left = account.limit_bytes - std::min(account.limit_bytes, account.charged_bytes);
  return state_.devices.dram->GrowthBytes(slot_bytes, left) == 0 ? Refusal::kTenantLimit : Refusal::kCapacity;
}

SpaceResult Space::TakeNvme(TenantState& tenant, uint32_t slot_bytes, uint64_t request, SlotId after) {
  const uint64_t slot_charge = slot_bytes + kNvmeHeaderBytes;
  const Refusal short_of = state_.devices.nvme->all_healthy() ? Refusal::kCapacity : Refusal::kTierSick;
  // No room that anybody makes would do.
  if (!state_.devices.nvme->Fits(slot_bytes)) return {SpaceOutcome::kRefused, SlotId::None(), short_of};
  for (uint32_t round = 0; round < kEvictionsPerReserveMax; ++round) {
    SlotId slot;
    Step step = GrowNvme(tenant, slot_bytes, after, &slot);
    if (slot.valid()) return {SpaceOutcome::kTaken, slot, Refusal::kNone};
    if (step == Step::kWait) return {SpaceOutcome::kRefused, SlotId::None(), Refusal::kTierSick};
    if (step == Step::kStuck) step = DropExpired(tenant, TierKind::kNvme);
    // Who stores blocks of the size that is brought together now gives up some of its own the earlier.
    const bool own_size = state_.devices.nvme->LeavesSize(slot_bytes);
    if (step == Step::kStuck && !own_size && Room(tenant, TierKind::kNvme) >= slot_charge) {
      // Free, but in segments of other sizes: brought together, it costs nobody a block.
      const Compaction::Started started = compaction_.Start(slot_bytes);
      if (started == Compaction::Started::kUnderWay) {
        step = Step::kWait;
        NoteWants(tenant, TierKind::kNvme, slot_charge);
      }
      if (started == Compaction::Started::kStuck) return {SpaceOutcome::kRefused, SlotId::None(), Refusal::kTierSick};
    }
    if (step == Step::kStuck && shares_.AboveCap(tenant, TierKind::kNvme))
      step = EvictNvme(tenant, slot_bytes, request);
    if (step == Step::kStuck) step = TakeNvmeFromOthers(tenant, slot_bytes);
    if (step == Step::kStuck) step = EvictNvme(tenant, slot_bytes, request);
    // What others borrowed may lie on a disk that is sick: nobody waits for that.
    const bool may_wait = step == Step::kStuck && state_.devices.nvme->all_healthy();
    if (may_wait && WaitsForGuarantee(tenant, TierKind::kNvme, slot_charge)) step = Step::kWait;
    if (step == Step::kWait) return {SpaceOutcome::kWait, SlotId::None(), Refusal::kNone};
    if (step == Step::kStuck) break;
  }
  const policy::Account& account = state_.ledger.account(tenant.id, TierKind::kNvme);
  if (account.limit_bytes < slot_charge) return {SpaceOutcome::kRefused, SlotId::None(), Refusal::kTooSmall};
  const bool limited = account.charged_bytes + slot_charge > account.limit_bytes;
  return {SpaceOutcome::kRefused, SlotId::None(), limited ? Refusal::kTenantLimit : short_of};
}

// kWait: the device refused what the ledger and its free slots allow.
Space::Step Space::GrowNvme(TenantState& tenant, uint32_t slot_bytes, SlotId after, SlotId* slot) {
  tier::NvmeTier& nvme = *state_.devices.nvme;
  const uint64_t growth = nvme.GrowthBytes(slot_bytes, Room(tenant, TierKind::kNvme));
  if (growth == 0) return Step::kStuck;
  auto charged = state_.ledger.TryCharge(tenant.id, TierKind::kNvme, growth);
  KV_CHECK(charged.reason == Refusal::kNone);
  *slot = nvme.TakeBehind(tenant.domain(), slot_bytes, after);
  if (!slot->valid()) return Step::kWait;
  charged.charge.Settle();
  return Step::kRetry;
}

Space::Step Space::EvictNvme(TenantState& tenant, uint32_t slot_bytes, uint64_t request) {
  const bool short_on_disks = Room(tenant, TierKind::kNvme) >= slot_bytes + kNvmeHeaderBytes;
  const EntryId victim =
      short_on_disks ? VictimOnTakingDisk(tenant, slot_bytes, request) : Victim(tenant, TierKind::kNvme, request);
  if (!victim.valid()) return Step::kStuck;
  residency_.DropCopy(victim, TierKind::kNvme, DropReason::kOwnSpace);
  return Step::kRetry;
}

// One block whose time is over and that a tick has not come to yet.
Space::Step Space::DropExpired(TenantState& tenant, TierKind tier) {
  const EntryId oldest = residency_.Oldest(tenant, tier);
  if (!oldest.valid() || !residency_.Evictable(oldest, tier)) return Step::kStuck;
  const index::Entry& entry = state_.index.at(oldest);
  const uint32_t now_tick = state_.NowTick();
  // What is over age is erased, not dropped.
  if (!state_.Expired(oldest, tier, now_tick) || state_.OverAge(oldest, now_tick)) return Step::kStuck;
  const bool moves_on = tier == TierKind::kDram && !entry.resident(TierKind::kNvme) &&
                        tenant.rules.on_expiry == policy::OnExpiry::kDemote && state_.NvmeUsable(tenant);
  if (moves_on) return Step::kStuck;
  residency_.DropCopy(oldest, tier, DropReason::kIdle);
  return Step::kRetry;
}

Refusal Space::MakeEntryRoom(TenantState& tenant, uint64_t request) {
  for (uint32_t round = 0; round < kEvictionsPerReserveMax; ++round) {
    if (tenant.stats.entries < tenant.rules.max_entries) return Refusal::kNone;
    if (!DropOneEntry(tenant, request)) break;
  }
  return Refusal::kEntryCap;
}

bool Space::DropOneEntry(TenantState& tenant, uint64_t request) {
  if (SparesNoMore(tenant, request)) return false;
  EntryId first;
  for (TierKind tier : {TierKind::kDram, TierKind::kNvme}) {
    const EntryId candidate = residency_.First(tenant, tier, [&](EntryId id) {
      if (Spares(tenant, id, request)) return false;
      return state_.index.at(id).children == 0 && residency_.Removable(id) && !IsDueForErasure(id);
    });
    if (!candidate.valid()) continue;
    if (!first.valid() || residency_.GoesBefore(candidate, first, tier)) first = candidate;
  }
  if (!first.valid()) return false;
  residency_.DropBlock(first, DropReason::kEntryCap);
  return true;
}

uint64_t Space::GiveBackEmpty(TenantState& tenant) {
  if (!tenant.memory_open || state_.devices.dram->EmptyBytes(tenant.domain()) == 0) return 0;
  auto bytes = std::make_shared<uint64_t>(0);
  *bytes = state_.devices.dram->Shrink(tenant.domain(), 0,
                                       [this, alive = std::weak_ptr<bool>(alive_), owner = &tenant, bytes] {
                                         if (alive.expired() || *bytes == 0) return;  // 0: there was nothing to take
                                         owner->reclaiming_bytes -= *bytes;
                                         state_.ledger.Reclaimed(TierKind::kDram, *bytes);
                                         state_.WakeAll();
                                       });
  if (*bytes == 0) return 0;
  tenant.reclaiming_bytes += *bytes;
  state_.ledger.Refund(tenant.id, TierKind::kDram, *bytes, /*still_reclaiming=*/true);
  return *bytes;
}

void Space::DrainOverLimit(TenantState& tenant, uint32_t max_blocks) {
  bool& entries_stuck = tenant.stuck_on_entries = false;
  for (uint32_t taken = 0; taken < max_blocks && tenant.stats.entries > tenant.rules.max_entries; ++taken) {
    // Entries go that nothing is left of: nothing has to go for them.
    if (state_.NowTick() - tenant.chain_erased_tick <= 1) break;
    entries_stuck = !DropOneEntry(tenant, kNoRequest);
    if (entries_stuck) break;
  }
  tenant.stuck_on_nvme = false;
  for (uint32_t taken = 0; taken < max_blocks && AboveLimit(tenant, TierKind::kNvme); ++taken) {
    const EntryId victim = Victim(tenant, TierKind::kNvme, kNoRequest);
    tenant.stuck_on_nvme = !victim.valid();
    if (!victim.valid()) break;
    residency_.DropCopy(victim, TierKind::kNvme, DropReason::kOverLimit);
  }
  // Whole extents, as another tenant would take them: in the one that leaves nothing new is stored or leased.
  uint32_t rounds = max_blocks;
  while (AboveLimit(tenant, TierKind::kDram) && rounds > 0) {
    if (EmptyExtent(tenant, DropReason::kOverLimit, policy::Claim::kGuarantee, kNoRequest, &rounds) != Step::kRetry)
      break;
  }
}

}  // namespace kvartal::engine
