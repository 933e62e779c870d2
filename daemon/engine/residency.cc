#include "daemon/engine/residency.h"

#include <limits>

#include "daemon/base/check.h"

namespace kvartal::engine {

using index::Entry;

namespace {
// A part of a turn of the timers, in which many chains may end.
constexpr uint32_t kErasedAtOnceMax = kTimerWorkPerTurn / kTimerDropWork / 8;
}  // namespace

bool Residency::IsCandidate(const Entry& entry, TierKind tier) const {
  return entry.state == BlockState::kCommitted && entry.resident(tier) && entry.copy(tier).children == 0 &&
         !entry.leased_in(tier) && !entry.pinned_in(tier);
}

policy::BlockTraits Residency::TraitsOf(const Entry& entry) const {
  const ModelLayout& layout = state_.ns(entry.ns).layout;
  return {.last_touch = entry.last_touch,
          .offset_tokens = uint64_t{entry.depth} * layout.tokens_per_block,
          .ns = entry.ns,
          .slot_bytes = layout.SlotBytes(),
          .depth = entry.depth,
          .last_access_tick = entry.last_access_tick,
          .frequency = entry.frequency,
          .phase = static_cast<policy::SessionPhase>(entry.phase)};
}

policy::SessionPhase Residency::PhaseOf(const Entry& entry, uint64_t request) const {
  if (entry.parent.valid()) {
    const Entry& parent = state_.index.at(entry.parent);
    if (parent.last_touch == request) return static_cast<policy::SessionPhase>(parent.phase);
  }
  // It came without a lookup of its own: so deep in a chain it is not the first of it.
  const uint64_t offset_tokens = uint64_t{entry.depth} * state_.ns(entry.ns).layout.tokens_per_block;
  return offset_tokens >= policy::kContinuingTokens ? policy::SessionPhase::kContinuing : policy::SessionPhase::kNew;
}

void Residency::NoteUse(Entry* entry, uint64_t request, uint32_t now_tick, policy::SessionPhase phase) {
  policy::ReuseHistory* history = state_.TenantOf(*entry).history();
  policy::PastUse past;
  if (history != nullptr) {
    // An entry, be it a placeholder, knows its past; a block that had none may be remembered.
    past = entry->frequency > 0 ? policy::PastUseOf(TraitsOf(*entry))
                                : history->ghosts.Recall(EngineState::FingerprintOf(entry->ns, entry->key));
    entry->frequency = past.frequency;
  }
  entry->last_touch = request;
  entry->last_access_tick = now_tick;
  if (entry->frequency < std::numeric_limits<uint8_t>::max()) ++entry->frequency;
  entry->phase = static_cast<uint8_t>(phase);
  if (history != nullptr) history->classes.Use(past, policy::ReuseClassOf(TraitsOf(*entry)), now_tick);
}

EntryId Residency::Reserve(NamespaceId ns, const BlockKey& key, EntryId known, EntryId parent, uint32_t depth,
                           uint64_t request) {
  EntryId id = known;
  if (!id.valid()) {
    id = state_.InsertEntry(ns, key, parent, depth);
  }
  Entry& entry = state_.index.at(id);
  KV_CHECK(MayBecome(entry.state, BlockState::kReserved) && !entry.resident(TierKind::kDram));
  if (entry.state == BlockState::kGone) state_.timers.Cancel(id);  // it was to be erased
  LeaveOrders(id);
  entry.state = BlockState::kReserved;
  NoteUse(&entry, request, state_.NowTick(), PhaseOf(entry, request));
  return id;
}

void Residency::StartFilling(EntryId id, SlotId dram_slot) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(MayBecome(entry.state, BlockState::kFilling));
  entry.state = BlockState::kFilling;
  SetCopy(id, TierKind::kDram, dram_slot);
}

void Residency::Commit(EntryId id) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(MayBecome(entry.state, BlockState::kCommitted));
  entry.state = BlockState::kCommitted;
  entry.last_access_tick = state_.NowTick();
  if (!entry.resident(TierKind::kNvme)) entry.first_commit_tick = entry.last_access_tick;
  state_.Arm(id);
  JoinOrders(id);
}

void Residency::AdoptOnNvme(EntryId id, SlotId slot, uint32_t first_commit_tick, uint32_t last_access_tick) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(entry.state == BlockState::kGone);
  entry.state = BlockState::kCommitted;
  entry.first_commit_tick = first_commit_tick;
  entry.last_access_tick = last_access_tick;
  entry.last_touch = last_access_tick;  // requests are numbered above every tick, so all of these are older
  entry.frequency = 1;                  // at least that; no count is on disk
  entry.durable = true;
  SetCopy(id, TierKind::kNvme, slot);
  ++state_.TenantOf(entry).stats.durable_blocks;
  entry.recorded_period = state_.AccessPeriodOf(entry) & 3;
  state_.Arm(id);
}

void Residency::AdoptBeside(EntryId id, SlotId slot, uint32_t first_commit_tick, bool recorded) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(entry.state != BlockState::kGone && !entry.resident(TierKind::kNvme) && !entry.writing);
  if (entry.state == BlockState::kFilling) state_.NoteFillingBesideCopy(id);
  // Its age counts from the first of both.
  const bool older = entry.state != BlockState::kCommitted || first_commit_tick < entry.first_commit_tick;
  if (older) entry.first_commit_tick = first_commit_tick;
  entry.durable = recorded;
  SetCopy(id, TierKind::kNvme, slot);
  if (recorded) ++state_.TenantOf(entry).stats.durable_blocks;
  // That may be where its pin belongs: its timer looks.
  if (entry.pinned_in(TierKind::kDram)) state_.timers.Schedule(id, state_.NowTick() + 1);
  entry.recorded_period = (state_.AccessPeriodOf(entry) + 1) & 3;  // another than that: its record is older
  state_.Arm(id);
}

void Residency::Touch(EntryId id, uint64_t request, uint32_t now_tick) {
  Touch(id, request, now_tick, PhaseOf(state_.index.at(id), request));
}

void Residency::Touch(EntryId id, uint64_t request, uint32_t now_tick, policy::SessionPhase phase) {
  Entry& entry = state_.index.at(id);
  if (entry.last_touch == request) return;
  LeaveOrders(id);
  NoteUse(&entry, request, now_tick, phase);
  JoinOrders(id);
}

void Residency::SetEnded(EntryId id) {
  LeaveOrders(id);
  state_.index.at(id).phase = static_cast<uint8_t>(policy::SessionPhase::kEnded);
  JoinOrders(id);
}

void Residency::Refresh(EntryId id, uint64_t request, uint32_t now_tick) {
  Entry& entry = state_.index.at(id);
  LeaveOrders(id);
  entry.last_touch = request;
  entry.last_access_tick = now_tick;
  entry.phase = static_cast<uint8_t>(policy::SessionPhase::kContinuing);
  JoinOrders(id);
}

void Residency::JoinOrders(EntryId id) {
  const Entry& entry = state_.index.at(id);
  for (TierKind tier : kAllTiers) {
    if (IsCandidate(entry, tier)) OrderOf(entry, tier).Insert(id, TraitsOf(entry));
  }
}

void Residency::LeaveOrders(EntryId id) {
  const Entry& entry = state_.index.at(id);
  for (TierKind tier : kAllTiers) {
    if (IsCandidate(entry, tier)) OrderOf(entry, tier).Remove(id, TraitsOf(entry));
  }
}

policy::EvictionOrder& Residency::OrderOf(const Entry& entry, TierKind tier) const {
  return OrderOf(entry, tier, entry.copy(tier).slot);
}

policy::EvictionOrder& Residency::OrderOf(const Entry& entry, TierKind tier, SlotId slot) const {
  return state_.TenantOf(entry).order(tier, tier == TierKind::kNvme ? state_.devices.nvme->DiskOf(slot) : 0);
}

EntryId Residency::First(TenantState& tenant, TierKind tier, absl::FunctionRef<bool(EntryId)> may_go,
                         tier::DiskSet disks, uint32_t slot_bytes) const {
  // A namespace has one size.
  const auto may_be_of = [this, slot_bytes](NamespaceId ns) {
    return slot_bytes == kAnySize || state_.ns(ns).layout.SlotBytes() == slot_bytes;
  };
  EntryId first;
  for (size_t disk = 0; disk < tenant.orders.tiers[TierIndex(tier)].size(); ++disk) {
    if ((disks & tier::SetOfDisk(disk)) == tier::kNoDisk) continue;
    const EntryId of_disk = tenant.order(tier, disk).Victim(may_go, kVictimProbesMax, may_be_of);
    if (of_disk.valid() && (!first.valid() || GoesBefore(of_disk, first, tier))) first = of_disk;
  }
  return first;
}

EntryId Residency::Oldest(TenantState& tenant, TierKind tier) const {
  EntryId oldest;
  for (const auto& order : tenant.orders.tiers[TierIndex(tier)]) {
    const EntryId of_disk = order->Oldest();
    if (!of_disk.valid()) continue;
    const bool older =
        !oldest.valid() || state_.index.at(of_disk).last_access_tick < state_.index.at(oldest).last_access_tick;
    if (older) oldest = of_disk;
  }
  return oldest;
}

bool Residency::GoesBefore(EntryId first, EntryId second, TierKind tier) const {
  const Entry& entry = state_.index.at(first);
  return state_.TenantOf(entry).order(tier).GoesBefore(TraitsOf(entry), TraitsOf(state_.index.at(second)));
}

bool Residency::AddLease(EntryId id) {
  Entry& entry = state_.index.at(id);
  if (entry.lease_count == kHoldsPerBlockMax) return false;
  TenantState& tenant = state_.TenantOf(entry);
  if (entry.lease_count == 0) {
    const uint64_t bytes = state_.SlotBytesOf(entry);
    const uint64_t more_bytes = entry.pinned_in(TierKind::kDram) ? 0 : bytes;
    if (LeasesCapped(tenant, more_bytes)) return false;
    tenant.leased_bytes += bytes;
    tenant.kept_bytes += more_bytes;
    if (IsCandidate(entry, TierKind::kDram)) tenant.order(TierKind::kDram).Remove(id, TraitsOf(entry));
  }
  ++entry.lease_count;
  return true;
}

bool Residency::LeasesCapped(const TenantState& tenant, uint64_t more_bytes) const {
  return more_bytes > 0 && tenant.kept_bytes + more_bytes > LeaseCapBytes(tenant);
}

uint64_t Residency::LeaseCapBytes(const TenantState& tenant) const {
  if (state_.GuaranteeWaits(TierKind::kDram)) return tenant.rules.tier(TierKind::kDram).guarantee_bytes;
  const policy::Account& account = state_.ledger.account(tenant.id, TierKind::kDram);
  return account.charged_bytes > account.limit_bytes ? account.limit_bytes : kNoCap;
}

void Residency::EndLease(EntryId id, uint32_t now_tick) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(entry.lease_count > 0);
  if (entry.lease_count > 1) {
    --entry.lease_count;
    return;
  }
  LeaveOrders(id);
  entry.lease_count = 0;
  entry.last_access_tick = now_tick;  // it was in use until now
  TenantState& tenant = state_.TenantOf(entry);
  tenant.leased_bytes -= state_.SlotBytesOf(entry);
  if (!entry.pinned_in(TierKind::kDram)) tenant.kept_bytes -= state_.SlotBytesOf(entry);
  JoinOrders(id);
}

uint64_t Residency::PinBytes(EntryId id, TierKind tier) const {
  return state_.SlotBytesOf(state_.index.at(id)) + (tier == TierKind::kNvme ? kNvmeHeaderBytes : 0);
}

void Residency::Pin(EntryId id, TierKind tier) {
  Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  ClearPin(id);
  LeaveOrders(id);
  entry.pinned = true;
  entry.pin_on_nvme = tier == TierKind::kNvme;
  tenant.pinned_bytes[TierIndex(tier)] += PinBytes(id, tier);
  if (tier == TierKind::kDram && entry.lease_count == 0) tenant.kept_bytes += PinBytes(id, tier);
  JoinOrders(id);
}

void Residency::ClearPin(EntryId id) {
  Entry& entry = state_.index.at(id);
  if (!entry.pinned) return;
  TenantState& tenant = state_.TenantOf(entry);
  const TierKind tier = entry.pin_tier();
  LeaveOrders(id);
  entry.pinned = false;
  tenant.pinned_bytes[TierIndex(tier)] -= PinBytes(id, tier);
  if (tier == TierKind::kDram && entry.lease_count == 0) tenant.kept_bytes -= PinBytes(id, tier);
  JoinOrders(id);
}

void Residency::Unpin(EntryId id) {
  Entry& entry = state_.index.at(id);
  if (!entry.pinned) return;
  ClearPin(id);
  state_.TenantOf(entry).pins.erase(id);
}

void Residency::SetCopy(EntryId id, TierKind tier, SlotId slot) {
  Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  // The parent stops being a leaf of this tier.
  const EntryId parent = entry.parent;
  const bool parent_was_candidate = parent.valid() && IsCandidate(state_.index.at(parent), tier);
  state_.index.SetCopy(id, tier, slot);
  if (tier == TierKind::kDram) state_.devices.dram->SetHolder(tenant.domain(), slot, id);
  if (tier == TierKind::kNvme) state_.devices.nvme->SetHolder(slot, id);
  ++tenant.stats.tiers[TierIndex(tier)].blocks;
  if (parent_was_candidate) OrderOf(state_.index.at(parent), tier).Remove(parent, TraitsOf(state_.index.at(parent)));
  if (IsCandidate(entry, tier)) OrderOf(entry, tier).Insert(id, TraitsOf(entry));
}

void Residency::ClearCopy(EntryId id, TierKind tier) {
  Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  if (IsCandidate(entry, tier)) OrderOf(entry, tier).Remove(id, TraitsOf(entry));
  state_.index.ClearCopy(id, tier);
  --tenant.stats.tiers[TierIndex(tier)].blocks;
  if (!entry.parent.valid()) return;
  const Entry& parent = state_.index.at(entry.parent);
  if (IsCandidate(parent, tier)) OrderOf(parent, tier).Insert(entry.parent, TraitsOf(parent));
}

void Residency::AddCopy(EntryId id, TierKind tier, SlotId slot) {
  SetCopy(id, tier, slot);
  Entry& entry = state_.index.at(id);
  if (tier == TierKind::kNvme) entry.recorded_period = state_.AccessPeriodOf(entry) & 3;
  entry.read_errors = 0;  // written or read just now
  state_.Arm(id);
}

void Residency::FreeSlot(const Entry& entry, TierKind tier, SlotId slot) {
  TenantState& tenant = state_.TenantOf(entry);
  if (tier == TierKind::kDram) {
    state_.devices.dram->Give(tenant.domain(), slot);
    return;
  }
  KV_CHECK(tier == TierKind::kNvme);
  state_.recording.erase(slot);
  state_.devices.catalog->Delete(slot);
  GiveBackNvme(tenant, slot);
}

void Residency::GiveBackNvme(const TenantState& tenant, SlotId slot) {
  state_.devices.nvme->Give(tenant.domain(), slot);
  state_.ledger.Refund(tenant.id, TierKind::kNvme, state_.devices.nvme->Shrink(tenant.domain(), 0, [] {}));
}

void Residency::DropCopy(EntryId id, TierKind tier, policy::DropCause cause) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(entry.resident(tier) && !entry.writing && !entry.reading);
  KV_CHECK(tier != TierKind::kDram || entry.lease_count == 0);
  // What is pinned here is nobody else's.
  KV_CHECK(cause.reason != policy::DropReason::kTakenByOther || !entry.pinned_in(tier));
  const SlotId slot = entry.copy(tier).slot;
  TenantState& tenant = state_.TenantOf(entry);
  const bool retired = state_.ns(entry.ns).users == 0;
  if (retired && cause.reason == policy::DropReason::kOwnSpace) cause.reason = policy::DropReason::kRetired;
  state_.NoteDrop(tenant, tier, cause, state_.SlotBytesOf(entry));
  const bool for_space = cause.reason == policy::DropReason::kOwnSpace ||
                         cause.reason == policy::DropReason::kTakenByOther ||
                         cause.reason == policy::DropReason::kOverLimit;
  if (for_space) state_.RememberLost(tenant, tier, entry);
  ClearCopy(id, tier);
  // What is retired or has ended goes whatever it is worth: nothing is learnt from that.
  const bool over = retired || static_cast<policy::SessionPhase>(entry.phase) == policy::SessionPhase::kEnded;
  if (policy::IsEviction(cause.reason) && !over) OrderOf(entry, tier, slot).Evicted(TraitsOf(entry));
  if (tier == TierKind::kNvme && entry.durable) {
    entry.durable = false;
    --state_.TenantOf(entry).stats.durable_blocks;
  }
  FreeSlot(entry, tier, slot);
  EraseIfGone(id);
}

bool Residency::ServedFromNvme(const Entry& entry) const {
  return state_.devices.nvme->SecrecyOf(entry.copy(TierKind::kNvme).slot) == tier::Secrecy::kAsAsked;
}

bool Residency::DropIfNotServed(EntryId id) {
  const Entry& entry = state_.index.at(id);
  if (!entry.resident(TierKind::kNvme) || entry.writing || entry.reading || ServedFromNvme(entry)) return false;
  // It is erased instead, and the receipt says so.
  if (state_.OverAge(id, state_.NowTick())) return false;
  tier::NvmeTier& nvme = *state_.devices.nvme;
  const bool clear = nvme.SecrecyOf(entry.copy(TierKind::kNvme).slot) == tier::Secrecy::kInTheClear;
  // With no key at all nothing could be written in its place.
  if (!clear && !nvme.MayWrite(state_.TenantOf(entry).domain())) return false;
  DropCopy(id, TierKind::kNvme, clear ? policy::DropReason::kInTheClear : policy::DropReason::kKeyMissing);
  // What is in memory, too, is written again.
  if (state_.index.IsLive(id) && entry.resident(TierKind::kDram)) {
    state_.index.at(id).times_unrecorded = true;
    state_.timers.Schedule(id, std::min(state_.timers.DueOf(id), state_.NowTick() + kTimerBusyTicks));
  }
  return true;
}

void Residency::DropBlock(EntryId id, policy::DropCause cause) {
  KV_CHECK(!state_.index.at(id).in_use());
  for (TierKind tier : kAllTiers) {
    if (state_.index.IsLive(id) && state_.index.at(id).resident(tier)) DropCopy(id, tier, cause);
  }
}

SlotId Residency::Abandon(EntryId id) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(entry.state == BlockState::kReserved || entry.state == BlockState::kFilling);
  SlotId slot;
  if (entry.state == BlockState::kFilling) {
    slot = entry.copy(TierKind::kDram).slot;
    ClearCopy(id, TierKind::kDram);
  }
  if (entry.resident(TierKind::kNvme)) {
    entry.state = BlockState::kCommitted;
    JoinOrders(id);
    state_.Arm(id);
    return slot;
  }
  entry.state = BlockState::kGone;
  EraseIfGone(id);
  return slot;
}

uint32_t Residency::EraseIfGone(EntryId id) {
  // Erasing the last child of a placeholder makes the placeholder itself superfluous, and so on upwards.
  uint32_t erased = 0;
  while (id.valid()) {
    Entry& entry = state_.index.at(id);
    for (TierKind tier : kAllTiers) {
      if (entry.resident(tier)) return erased;
    }
    if (entry.state == BlockState::kReserved || entry.state == BlockState::kFilling) return erased;
    entry.state = BlockState::kGone;
    entry.durable = false;
    state_.timers.Cancel(id);
    state_.durable_watch.erase(id);
    Unpin(id);
    if (entry.children > 0 || entry.in_use()) return erased;
    if (erased == kErasedAtOnceMax) {
      state_.timers.Schedule(id, state_.NowTick());
      state_.TenantOf(entry).chain_erased_tick = state_.NowTick();
      return erased;
    }
    const EntryId parent = entry.parent;
    TenantState& tenant = state_.TenantOf(entry);
    if (tenant.history() != nullptr && entry.frequency > 0 && !tenant.dropping) {
      tenant.history()->ghosts.Remember(EngineState::FingerprintOf(entry.ns, entry.key),
                                        policy::PastUseOf(TraitsOf(entry)), tenant.stats.entries - 1,
                                        state_.tenants.size());
    }
    state_.EraseEntry(id);
    ++erased;
    id = parent;
  }
  return erased;
}

bool Residency::Evictable(EntryId id, TierKind tier) const {
  const Entry& entry = state_.index.at(id);
  if (!Movable(id, tier) || state_.TenantOf(entry).dropping) return false;
  if (state_.TenantOf(entry).rules.max_age_ms > 0 && state_.OverAge(id, state_.NowTick())) return false;
  if (entry.hold_count == 0 && !entry.pinned) return true;
  for (TierKind other : kAllTiers) {
    if (other != tier && entry.resident(other)) return true;
  }
  return false;
}

bool Residency::Relocatable(EntryId id) const {
  if (!id.valid()) return false;
  const Entry& entry = state_.index.at(id);
  return entry.state == BlockState::kCommitted && entry.lease_count == 0 && !entry.writing && !entry.reading;
}

void Residency::MoveOnNvme(EntryId id, SlotId to, uint8_t access_period) {
  Entry& entry = state_.index.at(id);
  state_.recording.erase(entry.copy(TierKind::kNvme).slot);  // what waits to be recorded is no longer so
  LeaveOrders(id);                                           // it may be on another disk now
  state_.index.SetCopy(id, TierKind::kNvme, to);
  JoinOrders(id);
  state_.devices.nvme->SetHolder(to, id);
  entry.recorded_period = access_period & 3;
  entry.read_errors = 0;
  state_.Arm(id);  // its tenant's policy may have changed while it was copied
  // It may have been pinned, or for longer, while the record was written.
  if (entry.pinned) {
    entry.times_unrecorded = true;
    state_.timers.Schedule(id, state_.NowTick() + 1);
  }
}

void Residency::Relocate(EntryId id, SlotId to) { state_.index.SetCopy(id, TierKind::kDram, to); }

bool Residency::Movable(EntryId id, TierKind tier) const {
  const Entry& entry = state_.index.at(id);
  return entry.state == BlockState::kCommitted && !entry.leased_in(tier) && !entry.pinned_in(tier) && !entry.writing &&
         !entry.reading;
}

bool Residency::Erasable(EntryId id) const {
  const Entry& entry = state_.index.at(id);
  return entry.lease_count == 0 && !entry.pinned && !entry.writing && !entry.reading;
}

bool Residency::Removable(EntryId id) const {
  const Entry& entry = state_.index.at(id);
  return entry.state == BlockState::kCommitted && !entry.in_use() && !entry.pinned && !entry.writing && !entry.reading;
}

}  // namespace kvartal::engine
