// Space that one tenant is entitled to and another one holds.
//
// A DRAM extent belongs to one tenant, so a victim has to empty one. It gives up its least valuable blocks, wherever
// they lie, and what is left in the extent that is easiest to empty moves into their slots: a victim loses by value,
// never by place, and an extent needs no luck to become empty. Of several slot sizes that of the least valuable block
// is the one that goes; a tenant that wants slots of another size than that empties an extent for itself. Only blocks
// that are read, filled or written now cannot move; the extent takes no new block and grants no new lease, so it
// empties when those end.
#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

using policy::Claim;
using policy::DropCause;
using policy::DropReason;

namespace {
constexpr uint64_t kNoRequest = 0;
constexpr uint64_t kAnyBytes = UINT64_MAX;
constexpr size_t kStaysLong = kExtentMaxBytes / kSlotAlignBytes;  // more than all leases of an extent
}  // namespace

Space::Step Space::TakeDramFromOthers(TenantState& taker, uint32_t slot_bytes) {
  const uint64_t least_bytes = RoundUp(slot_bytes, kExtentAlignBytes);
  const policy::Account& account = state_.ledger.account(taker.id, TierKind::kDram);
  if (account.charged_bytes + least_bytes > account.limit_bytes) return Step::kStuck;
  if (taker.grow_failed_tick == state_.NowTick()) return Step::kStuck;
  shares_.NoteRanOut(taker, TierKind::kDram);
  const Claim claim = shares_.ClaimOf(taker, TierKind::kDram, least_bytes);
  if (claim == Claim::kNone) return Step::kStuck;
  state_.NoteTaking(TierKind::kDram);
  // An extent is on its way.
  if (state_.ledger.reclaiming_bytes(TierKind::kDram) > 0) return Step::kWait;
  while (TenantState* victim = shares_.Victim(taker, TierKind::kDram, claim)) {
    uint32_t rounds = kEvictionsPerReserveMax;
    const DropCause cause(DropReason::kTakenByOther, taker.id);
    const Step step = EmptyExtent(*victim, cause, claim, kNoRequest, &rounds);
    if (step != Step::kStuck) return step;
    shares_.NoteStuck(taker, *victim, TierKind::kDram, claim);
  }
  return Step::kStuck;
}

Space::Step Space::EmptyExtent(TenantState& victim, DropCause cause, Claim claim, uint64_t request, uint32_t* rounds) {
  tier::DramTier& dram = *state_.devices.dram;
  if (!victim.memory_open) return Step::kStuck;
  for (; *rounds > 0; --*rounds) {
    if (GiveBackEmpty(victim) > 0) return Step::kRetry;
    if (dram.LeavingSlots(victim.domain()) == 0 &&
        !ChooseExtent(victim, claim, Victim(victim, TierKind::kDram, request)))
      return Step::kStuck;
    const uint32_t wanted_bytes = dram.MoveOut(
        victim.domain(), [this](EntryId id) { return residency_.Relocatable(id); },
        [this](EntryId id, SlotId to) { residency_.Relocate(id, to); });
    if (dram.LeavingSlots(victim.domain()) == 0) continue;
    // What cannot move is not helped by a block that goes elsewhere.
    const EntryId given_up = wanted_bytes > 0 ? NextToGiveUp(victim, wanted_bytes, request) : EntryId::None();
    const Step step = given_up.valid() ? GiveUp(victim, given_up, cause) : Step::kStuck;
    if (wanted_bytes > 0 && !given_up.valid() && OnlyPinnedLeave(victim)) dram.StopLeaving(victim.domain());
    if (step == Step::kStuck && state_.ThatEnd(victim.writes_under_way) > 0) return Step::kWait;
    if (step != Step::kRetry) return step;
  }
  return Step::kStuck;
}

// An extent waits for nobody: what is in the way there moves, or is being written. Else blocks would go for nothing.
bool Space::EmptiesByItself(const TenantState& tenant) const {
  const std::vector<EntryId> holders = state_.devices.dram->LeavingHolders(tenant.domain());
  return std::all_of(holders.begin(), holders.end(), [this](EntryId id) {
    if (!id.valid()) return false;
    const index::Entry& entry = state_.index.at(id);
    return residency_.Relocatable(id) || (entry.writing && entry.lease_count == 0);
  });
}

Space::Step Space::EmptyOwnExtent(TenantState& tenant, uint32_t slot_bytes, uint64_t request, EntryId least_valuable) {
  tier::DramTier& dram = *state_.devices.dram;
  if (GiveBackEmpty(tenant) > 0) return Step::kRetry;
  const policy::Account& account = state_.ledger.account(tenant.id, TierKind::kDram);
  // One is on its way.
  const bool limit_has_room = account.charged_bytes + RoundUp(slot_bytes, kExtentAlignBytes) <= account.limit_bytes;
  if (limit_has_room && state_.ledger.reclaiming_bytes(TierKind::kDram) > 0) return Step::kWait;
  if (tenant.own_extent_stuck_tick == state_.NowTick()) return Step::kStuck;
  const bool owed = dram.LeavingSlots(tenant.domain()) > 0;
  const bool empties = owed || (ChooseExtent(tenant, Claim::kNone, least_valuable) && EmptiesByItself(tenant));
  uint32_t rounds = kEvictionsPerReserveMax;
  const Step step = empties ? EmptyExtent(tenant, DropReason::kOwnSpace, Claim::kNone, request, &rounds) : Step::kStuck;
  if (step != Step::kStuck) return step;
  tenant.own_extent_stuck_tick = state_.NowTick();
  if (!owed) dram.StopLeaving(tenant.domain());
  return step;
}

// None that would leave the victim without what it is guaranteed, in whole extents; for a guarantee any at all, when
// there is no such one: a policy may have moved the line into the middle of an extent.
bool Space::ChooseExtent(TenantState& victim, Claim claim, EntryId least_valuable) {
  const policy::Account& account = state_.ledger.account(victim.id, TierKind::kDram);
  const uint64_t borrowed = account.charged_bytes - std::min(account.charged_bytes, account.guarantee_bytes);
  const uint64_t fits_bytes = borrowed + kExtentAlignBytes - 1;
  const auto start = [&](uint64_t at_most_bytes, EntryId leaf) {
    const SlotId near = leaf.valid() ? state_.index.at(leaf).copy(TierKind::kDram).slot : SlotId::None();
    // A lease ends. What is pinned here waits for a slot, which nobody makes when no leaf of its size may go.
    const auto cost = [&](EntryId id) -> size_t {
      const bool pinned = id.valid() && state_.index.at(id).pinned_in(TierKind::kDram);
      if (pinned && !leaf.valid()) return kStaysLong;
      return residency_.Relocatable(id) ? 0 : 1;
    };
    return state_.devices.dram->StartLeaving(victim.domain(), at_most_bytes, near, cost);
  };
  // For itself: what it is guaranteed stays its own.
  if (claim == Claim::kNone) return start(kAnyBytes, least_valuable);
  if (start(fits_bytes, least_valuable)) return true;
  // Those of its size may all be larger than that.
  if (least_valuable.valid() && start(fits_bytes, EntryId::None())) return true;
  return claim == Claim::kGuarantee && start(kAnyBytes, least_valuable);
}

// And nothing makes room for them: another extent may be empty sooner, and these be read meanwhile.
bool Space::OnlyPinnedLeave(const TenantState& victim) const {
  const std::vector<EntryId> holders = state_.devices.dram->LeavingHolders(victim.domain());
  return std::all_of(holders.begin(), holders.end(), [this](EntryId id) {
    return residency_.Relocatable(id) && state_.index.at(id).pinned_in(TierKind::kDram);
  });
}

// A victim that reads all its leaves for ever must not hold what lies above them. Such blocks have descendants that
// stay: they are found again once the block is. A held block stays in the cache, not in this tier; one that is pinned
// here only moves.
EntryId Space::NextToGiveUp(TenantState& victim, uint32_t slot_bytes, uint64_t request) {
  const EntryId leaf = LeafOfSize(victim, slot_bytes, request);
  if (leaf.valid()) return leaf;
  // What it has is being erased, and certified: nobody else's by then.
  if (victim.dropping) return EntryId::None();
  EntryId deepest;
  for (const EntryId id : state_.devices.dram->LeavingHolders(victim.domain())) {
    if (!residency_.Relocatable(id) || IsDueForErasure(id)) continue;
    const index::Entry& entry = state_.index.at(id);
    if (entry.pinned_in(TierKind::kDram)) continue;
    if (!entry.resident(TierKind::kNvme) && Spares(victim, id, request)) continue;
    const bool may_go =
        entry.resident(TierKind::kNvme) || residency_.Evictable(id, TierKind::kDram) || state_.NvmeUsable(victim);
    if (may_go && (!deepest.valid() || entry.depth > state_.index.at(deepest).depth)) deepest = id;
  }
  return deepest;
}

// What is not below yet is written there first; for others a Basic tenant's blocks are not worth the disk's time now.
Space::Step Space::GiveUp(TenantState& victim, EntryId id, DropCause cause) {
  residency_.DropIfNotServed(id);
  const bool below = state_.index.at(id).resident(TierKind::kNvme);
  const bool may_drop = below || residency_.Evictable(id, TierKind::kDram);
  const bool own = cause.reason == DropReason::kOwnSpace;
  const bool worth_writing = own || victim.rules.sla != policy::SlaTier::kBasic || !may_drop;
  if (!below && worth_writing && state_.NvmeUsable(victim)) {
    const size_t leaving = state_.devices.dram->LeavingSlots(victim.domain());
    if (state_.ThatEnd(victim.demotions_under_way) >= leaving) return Step::kWait;
    const WriteStart start = demote_(id, cause);
    if (start == WriteStart::kStarted) return Step::kRetry;
    // A segment is being emptied: for a while at most.
    if (start == WriteStart::kLater) return Step::kWait;
    if (start == WriteStart::kQueueFull && state_.ThatEnd(victim.writes_under_way) > 0) return Step::kWait;
  }
  if (!may_drop) return Step::kStuck;
  residency_.DropCopy(id, TierKind::kDram, cause);
  return Step::kRetry;
}

void Space::NoteWants(const TenantState& tenant, TierKind tier, uint64_t least_bytes) {
  const Claim claim = shares_.ClaimOf(tenant, tier, least_bytes);
  if (claim != Claim::kNone) state_.NoteTaking(tier);
  if (claim == Claim::kGuarantee) state_.NoteGuaranteeWaits(tier);
}

bool Space::WaitsForGuarantee(const TenantState& tenant, TierKind tier, uint64_t least_bytes) {
  if (tier == TierKind::kDram && tenant.grow_failed_tick == state_.NowTick()) return false;
  const Claim claim = shares_.ClaimOf(tenant, tier, least_bytes);
  if (claim != Claim::kGuarantee || !shares_.Owed(tenant, tier, claim)) return false;
  state_.NoteGuaranteeWaits(tier);
  return true;
}

void Space::Tick() {
  WakeWhoWaitsForHungDisks();
  if (state_.SomebodyTakes(TierKind::kDram)) return;
  for (auto& tenant : state_.tenants) {
    const bool drains = AboveLimit(*tenant, TierKind::kDram);
    if (tenant->memory_open && !drains) state_.devices.dram->StopLeaving(tenant->domain());
  }
}

// Whoever waits for writes to a disk waits no longer once it hangs.
void Space::WakeWhoWaitsForHungDisks() {
  if (state_.devices.nvme == nullptr) return;
  const tier::DiskSet before = std::exchange(hanging_, state_.devices.nvme->hanging());
  if ((hanging_ & ~before) != tier::kNoDisk) state_.WakeAll();
}

bool Space::IsGiving(const TenantState& tenant) const {
  const policy::Account& account = state_.ledger.account(tenant.id, TierKind::kDram);
  return account.charged_bytes > account.guarantee_bytes && state_.devices.dram->LeavingSlots(tenant.domain()) > 0;
}

bool Space::IsOwed(EntryId id) const {
  const index::Entry& entry = state_.index.at(id);
  if (!entry.resident(TierKind::kDram)) return false;
  return state_.devices.dram->IsLeaving(state_.TenantOf(entry).domain(), entry.copy(TierKind::kDram).slot);
}

bool Space::AboveLimit(const TenantState& tenant, TierKind tier) const {
  const policy::Account& account = state_.ledger.account(tenant.id, tier);
  return account.charged_bytes > account.limit_bytes;
}

// A hold needs some copy, a lease in place the one in DRAM.
bool Space::MayUse(const Hold& hold) const {
  const index::Entry& entry = state_.index.at(hold.entry);
  const TenantState& tenant = state_.TenantOf(entry);
  if (tenant.stuck_on_nvme || (tenant.stuck_on_entries && !entry.pinned)) return false;
  if (tenant.rules.max_age_ms > 0 && state_.OverAge(hold.entry, state_.NowTick())) return false;
  return !IsOwed(hold.entry) || (!hold.in_place && entry.resident(TierKind::kNvme));
}

// What a tenant borrows ends when the lender comes: its leases and holds, as far as they, and what it has pinned, are
// more than its guarantee. Above a lowered limit, as far as they are more than that.
bool Space::MayKeep(std::span<const Hold> holds) const {
  if (holds.empty()) return true;
  const TenantState& tenant = state_.TenantOf(state_.index.at(holds.front().entry));
  const bool somebody_takes = state_.SomebodyTakes(TierKind::kDram) || state_.SomebodyTakes(TierKind::kNvme);
  const bool leaves = tenant.memory_open && state_.devices.dram->LeavingSlots(tenant.domain()) > 0;
  const uint64_t cap_bytes = residency_.LeaseCapBytes(tenant);
  const bool drains = leaves || tenant.stuck_on_nvme || tenant.stuck_on_entries || cap_bytes != Residency::kNoCap;
  if (!somebody_takes && !drains && tenant.rules.max_age_ms == 0) return true;
  const policy::Account& nvme = state_.ledger.account(tenant.id, TierKind::kNvme);
  const bool in_place_may = tenant.kept_bytes <= cap_bytes;
  const bool others_may = !state_.GuaranteeWaits(TierKind::kNvme) || nvme.charged_bytes <= nvme.guarantee_bytes;
  return std::all_of(holds.begin(), holds.end(),
                     [&](const Hold& hold) { return MayUse(hold) && (hold.in_place ? in_place_may : others_may); });
}

// On NVMe the slot is the unit: one block of the victim for one of the taker. Where slots are free, but of other sizes,
// others give up blocks for a guarantee alone: until so many are free of one size that a segment of it can be emptied.
// For a share only a slot that the taker can have is of use.
// That the books have room says nothing: they count what no slot covers, and disks that are sick or absent.
Space::Step Space::TakeNvmeFromOthers(TenantState& taker, uint32_t slot_bytes) {
  const uint64_t least_bytes = slot_bytes + kNvmeHeaderBytes;
  const policy::Account& account = state_.ledger.account(taker.id, TierKind::kNvme);
  if (account.charged_bytes + least_bytes > account.limit_bytes) return Step::kStuck;
  shares_.NoteRanOut(taker, TierKind::kNvme);
  const bool short_on_disks = Room(taker, TierKind::kNvme) >= least_bytes;
  const bool scattered = short_on_disks && state_.devices.nvme->FreeInOtherSizes(slot_bytes) >= least_bytes;
  const Claim claim = shares_.ClaimOf(taker, TierKind::kNvme, least_bytes);
  if (claim == Claim::kNone || (scattered && claim != Claim::kGuarantee)) return Step::kStuck;
  state_.NoteTaking(TierKind::kNvme);
  while (TenantState* victim = shares_.Victim(taker, TierKind::kNvme, claim)) {
    const auto may_go = [&](EntryId id) { return residency_.Evictable(id, TierKind::kNvme); };
    const EntryId leaf = short_on_disks ? residency_.First(*victim, TierKind::kNvme, may_go,
                                                           state_.devices.nvme->DisksThatTake(slot_bytes),
                                                           claim == Claim::kGuarantee ? kAnySize : slot_bytes)
                                        : Victim(*victim, TierKind::kNvme, kNoRequest);
    if (leaf.valid()) {
      residency_.DropCopy(leaf, TierKind::kNvme, DropCause(DropReason::kTakenByOther, taker.id));
      return Step::kRetry;
    }
    shares_.NoteStuck(taker, *victim, TierKind::kNvme, claim);
  }
  return Step::kStuck;
}

}  // namespace kvartal::engine
