#include "daemon/engine/movement.h"

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/base/check.h"

namespace kvartal::engine {

using index::Entry;

Movement::Movement(EngineState* state, Residency* residency, Space* space)
    : state_(*state), residency_(*residency), space_(*space) {
  space_.SetDemote(
      [this](EntryId id, policy::DropCause wanted_by) { return StartWrite(id, WriteReason::kDemotion, wanted_by); });
}

WriteStart Movement::StartWrite(EntryId id, WriteReason reason, policy::DropCause wanted_by) {
  Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  KV_CHECK(entry.state == BlockState::kCommitted && entry.resident(TierKind::kDram));
  if (entry.writing || entry.erasing || entry.resident(TierKind::kNvme)) return WriteStart::kNotNeeded;
  if (!state_.NvmeUsable(tenant)) return WriteStart::kNoRoom;
  const uint32_t slot_bytes = state_.SlotBytesOf(entry);
  if (!state_.devices.nvme->MayWrite(tenant.domain())) {
    state_.NoteRefusal(tenant, TierKind::kNvme, policy::Refusal::kEncryptionKeyMissing, slot_bytes);
    return WriteStart::kNoRoom;
  }
  const uint64_t written_bytes = slot_bytes + kNvmeHeaderBytes;
  if (!MayWrite(entry, written_bytes, reason)) {
    if (reason == WriteReason::kWriteThrough && IsToBeWrittenThrough(entry.parent)) return WriteStart::kLater;
    state_.NoteRefusal(tenant, TierKind::kNvme, policy::Refusal::kWriteBudget, slot_bytes);
    return WriteStart::kNoRoom;
  }
  entry.writing = true;  // keeps the search for room off this very block
  const SlotId behind = NvmeSlotOf(entry.parent);
  const SpaceResult room = space_.TakeNvme(tenant, slot_bytes, entry.last_touch, behind);
  if (room.outcome != SpaceOutcome::kTaken) {
    entry.writing = false;
    if (room.outcome == SpaceOutcome::kWait) return WriteStart::kLater;
    state_.NoteRefusal(tenant, TierKind::kNvme, room.reason, slot_bytes);
    return WriteStart::kNoRoom;
  }
  const std::span<const std::byte> payload(
      state_.devices.dram->DataOf(tenant.domain(), entry.copy(TierKind::kDram).slot), slot_bytes);
  const bool queued = state_.devices.nvme->Write(
      room.slot, state_.IdentityOf(id), state_.FirstCommitMs(entry), state_.WallMsOfTick(entry.last_access_tick),
      payload, [this, id, slot = room.slot, reason, wanted_by](absl::StatusOr<tier::BlockHeader> written) {
        FinishWrite(id, slot, reason, wanted_by, std::move(written));
      });
  if (!queued) {
    entry.writing = false;
    residency_.GiveBackNvme(tenant, room.slot);
    // One that is tried again is no other refusal.
    if (!entry.times_unrecorded) state_.NoteRefusal(tenant, TierKind::kNvme, policy::Refusal::kQueueFull, slot_bytes);
    return WriteStart::kQueueFull;
  }
  // Its parent may have made room for it.
  if (behind.valid() && behind == NvmeSlotOf(entry.parent)) state_.devices.nvme->GoOnBehind(behind);
  state_.SpendWrite(written_bytes);
  writing_to_[id] = room.slot;
  const size_t disk = state_.devices.nvme->DiskOf(room.slot);
  tenant.writes_under_way.Begin(disk);
  ++state_.writes_under_way;
  if (reason != WriteReason::kWriteThrough) tenant.demotions_under_way.Begin(disk);
  if (wanted_by.taker.valid()) ++state_.tenant(wanted_by.taker).takings_under_way;
  return WriteStart::kStarted;
}

SlotId Movement::NvmeSlotOf(EntryId id) const {
  if (!id.valid()) return SlotId::None();
  const Entry& entry = state_.index.at(id);
  if (entry.resident(TierKind::kNvme)) return entry.copy(TierKind::kNvme).slot;
  const auto writing = writing_to_.find(id);
  return writing == writing_to_.end() ? SlotId::None() : writing->second;
}

bool Movement::MayWrite(const Entry& entry, uint64_t bytes, WriteReason reason) const {
  const policy::WriteBudget& budget = state_.write_budget;
  if (entry.pinned || !budget.limited()) return true;  // what is pinned was promised
  const int64_t now_ns = state_.devices.clock->MonotonicNs();
  // Without the block before it nobody would find it there. What makes room in memory goes tail first, so that the
  // block before it has its turn later.
  const bool out_of_reach =
      reason == WriteReason::kWriteThrough && entry.parent.valid() && !NvmeSlotOf(entry.parent).valid();
  if (out_of_reach && budget.Asks(now_ns) != policy::WriteWorth::kAny) return false;
  const policy::ReuseHistory* const history = state_.TenantOf(entry).history();
  const policy::ReuseClasses* const classes = history == nullptr ? nullptr : &history->classes;
  return budget.Admits(now_ns, bytes, policy::WriteWorthOf(residency_.TraitsOf(entry), classes));
}

// Its turn is still to come: it waited for room or for the queue.
bool Movement::IsToBeWrittenThrough(EntryId id) const {
  if (!id.valid()) return false;
  const Entry& entry = state_.index.at(id);
  const bool in_memory_alone = entry.resident(TierKind::kDram) && !entry.resident(TierKind::kNvme);
  return entry.state == BlockState::kCommitted && in_memory_alone && entry.times_unrecorded && !entry.pinned;
}

void Movement::WriteThrough(EntryId id) {
  Entry& entry = state_.index.at(id);
  const TenantState& tenant = state_.TenantOf(entry);
  if (tenant.rules.tier(TierKind::kNvme).limit_bytes == 0 && !entry.pinned) entry.times_unrecorded = false;
  if (entry.durable) TellDurable(id);
  if (!entry.resident(TierKind::kDram) || entry.writing) return;
  if (state_.NvmeUsable(tenant)) residency_.DropIfNotServed(id);
  if (entry.resident(TierKind::kNvme)) return;
  if (state_.recovering && tenant.rules.tier(TierKind::kNvme).limit_bytes > 0) return WriteThroughLater(id);
  if (!state_.NvmeUsable(tenant)) return;
  // It would go with the next timer, and be written again.
  if (state_.Expired(id, TierKind::kNvme, state_.NowTick())) {
    entry.times_unrecorded = false;
    return;
  }
  const WriteStart start = StartWrite(id, WriteReason::kWriteThrough);
  // What became durable to a queue that was full has had its turn no more than what waits for room.
  if (start == WriteStart::kLater || start == WriteStart::kQueueFull) {
    WriteThroughLater(id);
  } else if (!entry.pinned) {
    // Tried once it could be: a copy that is evicted again is not written for ever.
    entry.times_unrecorded = false;
  }
}

void Movement::WriteThroughLater(EntryId id) {
  state_.index.at(id).times_unrecorded = true;
  state_.timers.Schedule(id, std::min(state_.timers.DueOf(id), state_.NowTick() + kTimerBusyTicks));
}

void Movement::FinishWrite(EntryId id, SlotId slot, WriteReason reason, policy::DropCause wanted_by,
                           absl::StatusOr<tier::BlockHeader> written) {
  Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  entry.writing = false;
  writing_to_.erase(id);
  const size_t disk = state_.devices.nvme->DiskOf(slot);
  tenant.writes_under_way.End(disk);
  --state_.writes_under_way;
  if (reason != WriteReason::kWriteThrough) tenant.demotions_under_way.End(disk);
  if (written.ok()) {
    residency_.AddCopy(id, TierKind::kNvme, slot);
    tenant.stats.nvme_written_bytes += state_.SlotBytesOf(entry);
    ++(reason == WriteReason::kWriteThrough ? tenant.stats.write_throughs : tenant.stats.demotions);
    tier::CatalogRecord record{slot, *written};
    if (entry.pinned_in(TierKind::kNvme)) record.header.pinned_until_s = state_.PinnedUntilWallS(id);
    Record(record);
    // That may be where its pin belongs: its timer looks.
    if (entry.pinned_in(TierKind::kDram)) state_.timers.Schedule(id, state_.NowTick() + 1);
  } else {
    residency_.GiveBackNvme(tenant, slot);
    if (absl::IsFailedPrecondition(written.status())) {
      state_.NoteRefusal(tenant, TierKind::kNvme, policy::Refusal::kEncryptionKeyMissing, state_.SlotBytesOf(entry));
    }
  }
  // The space was wanted: it is given up whether the write went well or not, else a sick disk would wedge the tier
  // above it.
  // For another tenant only while there is something to give: an extent that has been given costs no block more.
  const bool still_wanted = !wanted_by.taker.valid() || space_.IsGiving(tenant);
  if (reason != WriteReason::kWriteThrough && still_wanted && residency_.Evictable(id, TierKind::kDram) &&
      entry.resident(TierKind::kDram) &&
      (reason == WriteReason::kDemotion ||
       (state_.Expired(id, TierKind::kDram, state_.NowTick()) && !state_.OverAge(id, state_.NowTick())))) {
    const bool for_space = reason == WriteReason::kDemotion;
    residency_.DropCopy(id, TierKind::kDram, for_space ? wanted_by : policy::DropCause(policy::DropReason::kIdle));
  }
  // Before the tenant itself, who would fill the slot again that another one is owed.
  if (wanted_by.taker.valid()) {
    --state_.tenant(wanted_by.taker).takings_under_way;
    state_.Wake(state_.tenant(wanted_by.taker));
  }
  state_.Wake(tenant);
}

void Movement::Record(const tier::CatalogRecord& record) {
  state_.recording[record.slot] = record.header.generation;
  const bool queued = state_.devices.catalog->Put(record, [this, record](absl::Status status) {
    if (status.ok()) {
      MarkDurable(record);
    } else {
      unrecorded_.push_back(record);
    }
  });
  if (!queued) unrecorded_.push_back(record);
}

void Movement::Tick() {
  for (size_t left = std::min(unrecorded_.size(), kCatalogQueueMax); left > 0; --left) {
    const tier::CatalogRecord record = unrecorded_.front();
    unrecorded_.pop_front();
    // The slot may have been given up meanwhile, and may even hold another block.
    auto it = state_.recording.find(record.slot);
    if (it != state_.recording.end() && it->second == record.header.generation) Record(UpToDate(record));
  }
}

tier::CatalogRecord Movement::UpToDate(tier::CatalogRecord record) const {
  const EntryId id = state_.FindBlock(record.header.identity);
  if (!id.valid()) return record;
  const Entry& entry = state_.index.at(id);
  if (!entry.resident(TierKind::kNvme) || entry.copy(TierKind::kNvme).slot != record.slot) return record;
  record.header.last_access_ms = state_.WallMsOfTick(entry.last_access_tick);
  record.header.pinned_until_s = entry.pinned_in(TierKind::kNvme) ? state_.PinnedUntilWallS(id) : 0;
  return record;
}

void Movement::MarkDurable(const tier::CatalogRecord& record) {
  auto it = state_.recording.find(record.slot);
  if (it == state_.recording.end() || it->second != record.header.generation)
    return;  // the slot has a later block by now
  state_.recording.erase(it);
  const EntryId id = state_.FindBlock(record.header.identity);
  if (!id.valid()) return;
  Entry& entry = state_.index.at(id);
  if (entry.copy(TierKind::kNvme).slot != record.slot) return;
  if (!entry.durable) ++state_.TenantOf(entry).stats.durable_blocks;
  entry.durable = true;
  TellDurable(id);
}

void Movement::TellDurable(EntryId id) {
  // What the next life would not serve is no promise kept.
  const Entry& entry = state_.index.at(id);
  if (!residency_.ServedFromNvme(entry)) return;
  auto watch = state_.durable_watch.find(id);
  if (watch == state_.durable_watch.end()) return;
  const auto [group, reservation] = watch->second;
  state_.durable_watch.erase(watch);
  if (state_.observer != nullptr) state_.observer->OnDurable(group, reservation);
}

bool Movement::StartRead(EntryId id, SlotId slot, Reader reader) {
  Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  KV_CHECK(!entry.reading && !entry.resident(TierKind::kDram) && entry.resident(TierKind::kNvme));
  if (tenant.reads_under_way >= kPromotionsPerTenantMax) return false;
  const std::span<std::byte> payload(state_.devices.dram->DataOf(tenant.domain(), slot), state_.SlotBytesOf(entry));
  const SlotId from = entry.copy(TierKind::kNvme).slot;
  const auto done = [this, id](absl::Status status) { FinishRead(id, std::move(status)); };
  tier::NvmeTier& nvme = *state_.devices.nvme;
  const bool queued = reader.urgency == Urgency::kDemand ? nvme.Read(from, state_.IdentityOf(id), payload, done)
                                                         : nvme.ReadAhead(from, state_.IdentityOf(id), payload, done);
  if (!queued) return false;
  entry.reading = true;
  ++state_.reads_under_way;
  ++tenant.reads_under_way;
  Reading& reading = readings_[id];
  reading.to = slot;
  reading.urgency = reader.urgency;
  reading.readers.push_back(std::move(reader));
  return true;
}

void Movement::JoinRead(EntryId id, Reader reader) {
  const auto reading = readings_.find(id);
  KV_CHECK(reading != readings_.end());
  if (reader.urgency == Urgency::kDemand && reading->second.urgency == Urgency::kAhead) {
    state_.devices.nvme->Hasten(state_.index.at(id).copy(TierKind::kNvme).slot);
    reading->second.urgency = Urgency::kDemand;
  }
  reading->second.readers.push_back(std::move(reader));
}

void Movement::LeaveRead(EntryId id, const void* who) {
  const auto reading = readings_.find(id);
  if (reading == readings_.end()) return;
  std::erase_if(reading->second.readers, [&](const Reader& reader) { return reader.who == who; });
  if (!reading->second.readers.empty()) return;
  Entry& entry = state_.index.at(id);
  if (!state_.devices.nvme->TakeBack(entry.copy(TierKind::kNvme).slot)) return;
  TenantState& tenant = state_.TenantOf(entry);
  state_.devices.dram->Give(tenant.domain(), reading->second.to);
  readings_.erase(reading);
  entry.reading = false;
  --state_.reads_under_way;
  --tenant.reads_under_way;
}

void Movement::FinishRead(EntryId id, absl::Status status) {
  Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  --state_.reads_under_way;
  --tenant.reads_under_way;
  // The first reader to be told may release what it has, and that may make room for others: the block counts as moving
  // until every reader has had its turn to lease it.
  auto node = readings_.extract(id);
  const SlotId slot = node.mapped().to;
  if (status.ok()) {
    residency_.AddCopy(id, TierKind::kDram, slot);
    ++tenant.stats.blocks_loaded;
    tenant.stats.nvme_read_bytes += state_.SlotBytesOf(entry);
  } else {
    ++tenant.stats.load_failures;
    entry.reading = false;
    state_.devices.dram->Give(tenant.domain(), slot);
    // A device that failed says nothing of what it holds: that is kept, until it has failed there again and again.
    if (!absl::IsDataLoss(status) && entry.read_errors < kReadErrorsPerBlockMax) ++entry.read_errors;
    const bool lost = absl::IsDataLoss(status) || entry.read_errors == kReadErrorsPerBlockMax;
    // It is being moved within NVMe: who moves it reads it, too.
    const bool keyless = absl::IsFailedPrecondition(status);
    const policy::DropReason reason = keyless ? policy::DropReason::kKeyMissing : policy::DropReason::kUnreadable;
    if ((lost || keyless) && !entry.writing && !state_.IsToBeErased(id))
      residency_.DropCopy(id, TierKind::kNvme, reason);
  }
  for (Reader& reader : node.mapped().readers) reader.done(status.ok() ? ReadOutcome::kDone : ReadOutcome::kLost);
  if (status.ok()) entry.reading = false;
  state_.Wake(tenant);
}

}  // namespace kvartal::engine
