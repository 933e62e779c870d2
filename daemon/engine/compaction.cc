#include "daemon/engine/compaction.h"

#include <utility>

#include "daemon/base/check.h"

namespace kvartal::engine {

using index::Entry;

Compaction::Started Compaction::Start(uint32_t slot_bytes) {
  tier::NvmeTier& nvme = *state_.devices.nvme;
  if (nvme.leaving()) return Started::kUnderWay;
  const uint32_t now_tick = state_.NowTick();
  if (now_tick < not_before_tick_ || state_.draining) return Started::kStuck;
  if (!nvme.StartLeaving(slot_bytes)) return Started::kNothingToMove;
  progress_tick_ = now_tick;
  left_ = nvme.LeavingHolders();
  StartMoves();
  return Started::kUnderWay;
}

void Compaction::Tick() {
  if (state_.devices.nvme == nullptr) return;
  tier::NvmeTier& nvme = *state_.devices.nvme;
  ZeroSynced();
  if (!nvme.leaving()) return;
  const uint32_t now_tick = state_.NowTick();
  if (now_tick - progress_tick_ >= kSegmentStuckTicks || state_.draining || !nvme.LeavingHealthy()) {
    left_.clear();
    nvme.StopLeaving();
    not_before_tick_ = now_tick + kSegmentStuckTicks;
    return;
  }
  if (left_.empty() && state_.ThatEnd(moving_) == 0) left_ = nvme.LeavingHolders();
  StartMoves();
}

void Compaction::StartMoves() {
  while (state_.ThatEnd(moving_) < kSegmentMovesMax && !left_.empty()) {
    const EntryId id = left_.back();
    left_.pop_back();
    if (MayMove(id) && !StartMove(id)) left_.clear();  // the next tick looks again
  }
}

bool Compaction::MayMove(EntryId id) const {
  if (!state_.index.IsLive(id)) return false;
  const Entry& entry = state_.index.at(id);
  if (!entry.resident(TierKind::kNvme) || !state_.devices.nvme->IsLeaving(entry.copy(TierKind::kNvme).slot))
    return false;
  const bool at_rest = entry.durable && !entry.writing && !entry.reading;
  return at_rest && !state_.IsToBeErased(id);
}

bool Compaction::StartMove(EntryId id) {
  tier::NvmeTier& nvme = *state_.devices.nvme;
  Entry& entry = state_.index.at(id);
  const uint32_t slot_bytes = state_.SlotBytesOf(entry);
  const DomainId domain = state_.TenantOf(entry).domain();
  const uint64_t bytes = slot_bytes + kNvmeHeaderBytes;
  if (!state_.ledger.SetAside(TierKind::kNvme, bytes)) return false;
  absl::Status grown = absl::UnknownError("pending");
  nvme.Grow(domain, slot_bytes, bytes, [&grown](absl::Status status) { grown = std::move(status); });
  if (!grown.ok()) {
    state_.ledger.Reclaimed(TierKind::kNvme, bytes);
    return false;
  }
  const Move move{.id = id,
                  .tenant = TenantId(domain.value()),
                  .from = entry.copy(TierKind::kNvme).slot,
                  .to = nvme.Take(domain, slot_bytes),
                  .bytes = bytes,
                  .disk = nvme.DiskOf(entry.copy(TierKind::kNvme).slot),
                  .access_period = state_.AccessPeriodOf(entry)};
  entry.writing = true;
  moving_.Begin(move.disk);
  ++state_.writes_under_way;
  nvme.Copy(move.from, move.to, state_.IdentityOf(id), state_.FirstCommitMs(entry),
            state_.WallMsOfTick(entry.last_access_tick),
            [this, move](const absl::StatusOr<tier::BlockHeader>& copied) { OnCopied(move, copied); });
  return true;
}

void Compaction::OnCopied(const Move& move, const absl::StatusOr<tier::BlockHeader>& copied) {
  if (copied.ok()) {
    state_.SpendWrite(move.bytes);
    copied_.push_back({move, {move.to, *copied}});
    return SyncCopied();
  }
  Entry& entry = state_.index.at(move.id);
  entry.writing = false;
  // A reader who is under way finds out by itself.
  const bool may_go = !entry.reading && !state_.IsToBeErased(move.id);
  if (absl::IsDataLoss(copied.status()) && may_go)
    residency_.DropCopy(move.id, TierKind::kNvme, policy::DropReason::kUnreadable);
  // It would be read by nobody, and keep the segment from becoming empty.
  if (absl::IsFailedPrecondition(copied.status()) && may_go && !residency_.ServedFromNvme(entry))
    residency_.DropCopy(move.id, TierKind::kNvme, policy::DropReason::kKeyMissing);
  // Without a key to write it under it stays where it is.
  const bool untouched = absl::IsDataLoss(copied.status()) || absl::IsResourceExhausted(copied.status()) ||
                         absl::IsFailedPrecondition(copied.status());
  if (!untouched) return Vacate(move, move.to);
  left_.clear();  // the next tick looks again: there is no hurry where the disk has no room
  Free({move.tenant, move.to, move.bytes, move.disk});
}

// One sync for all that were copied meanwhile: a power cut must not leave the record of a copy that is not there in
// place of one that was.
void Compaction::SyncCopied() {
  if (syncing_copied_ || copied_.empty()) return;
  syncing_copied_ = true;
  state_.devices.catalog->Flush([this, copied = std::exchange(copied_, {})](const absl::Status& synced) {
    syncing_copied_ = false;
    for (const Copied& one : copied) Record(one, synced.ok());
    SyncCopied();
  });
}

void Compaction::Record(const Copied& copied, bool synced) {
  const Move& move = copied.move;
  Entry& entry = state_.index.at(move.id);
  tier::CatalogRecord record = copied.record;
  if (entry.pinned_in(TierKind::kNvme)) record.header.pinned_until_s = state_.PinnedUntilWallS(move.id);
  const bool recording = synced && state_.devices.catalog->Put(
                                       record, [this, move](const absl::Status& status) { OnRecorded(move, status); });
  if (recording) return;
  entry.writing = false;
  Vacate(move, move.to);
}

void Compaction::OnRecorded(const Move& move, const absl::Status& status) {
  Entry& entry = state_.index.at(move.id);
  entry.writing = false;
  const bool moves = status.ok() && !entry.reading && !state_.IsToBeErased(move.id);
  const SlotId left = moves ? move.from : move.to;
  if (moves) residency_.MoveOnNvme(move.id, move.to, move.access_period);
  state_.devices.catalog->Delete(left);
  Vacate(move, left);
}

void Compaction::Vacate(const Move& move, SlotId slot) {
  ++state_.tenant(move.tenant).erases_under_way;
  vacated_.push_back({move.tenant, slot, move.bytes, move.disk});
  SyncVacated();
}

// One sync for all that were vacated meanwhile.
void Compaction::SyncVacated() {
  if (syncing_ || vacated_.empty()) return;
  syncing_ = true;
  state_.devices.catalog->Flush([this, count = vacated_.size()](const absl::Status&) {
    syncing_ = false;
    synced_.insert(synced_.end(), vacated_.begin(), vacated_.begin() + static_cast<ptrdiff_t>(count));
    vacated_.erase(vacated_.begin(), vacated_.begin() + static_cast<ptrdiff_t>(count));
    SyncVacated();
    ZeroSynced();
  });
}

void Compaction::ZeroSynced() {
  while (!synced_.empty()) {
    const Vacancy vacancy = synced_.front();
    const bool queued = state_.devices.nvme->Erase(
        vacancy.slot, [this, vacancy](const absl::Status& status) { OnZeroed(vacancy, status); });
    if (!queued) return;  // a tick tries again
    state_.SpendWrite(vacancy.bytes);
    synced_.pop_front();
  }
}

void Compaction::OnZeroed(const Vacancy& vacancy, const absl::Status& status) {
  const tier::NvmeTier& nvme = *state_.devices.nvme;
  TenantState& tenant = state_.tenant(vacancy.tenant);
  if (!status.ok()) receipts_.NoteUnzeroed(tenant.owner, tenant.stats.name);
  --tenant.erases_under_way;
  if (nvme.IsLeaving(vacancy.slot)) progress_tick_ = state_.NowTick();
  Free(vacancy);
  StartMoves();
  if (!nvme.leaving()) state_.WakeAll();
}

void Compaction::Free(const Vacancy& vacancy) {
  tier::NvmeTier& nvme = *state_.devices.nvme;
  const DomainId domain = state_.tenant(vacancy.tenant).domain();
  nvme.Give(domain, vacancy.slot);
  KV_CHECK(nvme.Shrink(domain, 0, [] {}) == vacancy.bytes);
  state_.ledger.Reclaimed(TierKind::kNvme, vacancy.bytes);
  moving_.End(vacancy.disk);
  --state_.writes_under_way;
}

}  // namespace kvartal::engine
