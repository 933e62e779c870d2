#include "daemon/engine/expiry.h"

#include <algorithm>
#include <utility>

namespace kvartal::engine {

using index::Entry;

void Expiry::Tick() {
  const uint32_t now_tick = state_.NowTick();
  RunTimers();
  RearmSome();
  for (auto& tenant : state_.tenants) {
    if (tenant->dropping) {
      state_.Wake(*tenant);  // what waits has to be told
      continue;
    }
    space_.DrainOverLimit(*tenant, kOverLimitBlocksPerTick);
    pins_.Yield(*tenant, kOverLimitBlocksPerTick);
    GiveBackIdleExtents(*tenant);
    state_.Wake(*tenant);
  }
  KeepTime(now_tick);
  state_.stray_bytes_punched += state_.devices.dram->PunchStrayPages();
}

void Expiry::RunTimers() {
  const uint32_t now_tick = state_.NowTick();
  state_.timers.Advance(now_tick);
  uint32_t work = kTimerWorkPerTurn;
  for (EntryId id = state_.timers.PopDue(&work); id.valid(); id = state_.timers.PopDue(&work)) {
    work -= std::min(work, OnTimer(id, now_tick));
  }
}

uint32_t Expiry::OnTimer(EntryId id, uint32_t now_tick) {
  const Entry& entry = state_.index.at(id);
  uint32_t work = 0;
  // What a long chain of placeholders left to be erased.
  if (entry.state == BlockState::kGone) return residency_.EraseIfGone(id) * kTimerDropWork;
  // It goes with all the others; or its time is looked at when it is stored.
  if (state_.TenantOf(entry).dropping || entry.state != BlockState::kCommitted) {
    state_.timers.Schedule(id, now_tick + kTimerBusyTicks);
    return work;
  }
  if (entry.pinned && state_.TenantOf(entry).pins.at(id) <= now_tick) pins_.End(id);
  if (state_.OverAge(id, now_tick)) {
    pins_.End(id);
    EraseOverAge(id, now_tick);
    return kTimerDropWork;
  }
  pins_.MoveToNvme(id);
  if (DropDeadCopy(id)) work += kTimerDropWork;
  for (TierKind tier : {TierKind::kDram, TierKind::kNvme}) {
    if (!state_.index.IsLive(id) || !entry.resident(tier) || !state_.Expired(id, tier, now_tick)) continue;
    if (ExpireCopy(id, tier, now_tick)) work += kTimerDropWork;
  }
  if (!state_.index.IsLive(id) || entry.state != BlockState::kCommitted) return work;
  if (RefreshRecord(id, now_tick)) work += kTimerDropWork;
  LookAgain(id, now_tick);
  return work;
}

void Expiry::LookAgain(EntryId id, uint32_t now_tick) {
  const Entry& entry = state_.index.at(id);
  uint32_t next = state_.NextLook(id, now_tick);
  if (entry.times_unrecorded) next = std::min(next, now_tick + kTimerBusyTicks);
  if (next <= now_tick) next = now_tick + (entry.in_use() ? kTimerBusyTicks : 1);
  state_.timers.Schedule(id, next);
}

bool Expiry::ExpireCopy(EntryId id, TierKind tier, uint32_t now_tick) {
  if (!residency_.Removable(id)) return false;
  const Entry& entry = state_.index.at(id);
  const bool last_copy = tier == TierKind::kNvme || !entry.resident(TierKind::kNvme);
  if (tier == TierKind::kDram && last_copy && state_.TenantOf(entry).rules.on_expiry == policy::OnExpiry::kDemote &&
      !state_.Expired(id, TierKind::kNvme, now_tick)) {
    const WriteStart start = movement_.StartWrite(id, Movement::WriteReason::kExpiry);
    if (start == WriteStart::kStarted || start == WriteStart::kLater || start == WriteStart::kQueueFull) return true;
  }
  residency_.DropCopy(id, tier, policy::DropReason::kIdle);
  return true;
}

// On NVMe, and served to nobody.
bool Expiry::DropDeadCopy(EntryId id) {
  return state_.NvmeCopyIsDue(state_.index.at(id)) && residency_.DropIfNotServed(id);
}

// Two bits tell whether the record has the period of the last access: the timer looks at least once a period, so they
// cannot have gone round.
bool Expiry::RefreshRecord(EntryId id, uint32_t now_tick) {
  Entry& entry = state_.index.at(id);
  if (entry.times_unrecorded) movement_.WriteThrough(id);
  if (!entry.durable) return false;
  const TenantState& tenant = state_.TenantOf(entry);
  const uint8_t current = state_.AccessPeriodOf(entry);
  if (!entry.times_unrecorded && entry.recorded_period == current) return false;
  tier::RecordTimes times;
  times.last_access_ms = state_.WallMsOfTick(entry.last_access_tick);
  if (entry.pinned_in(TierKind::kNvme) && tenant.pins.at(id) > now_tick) {
    times.pinned_until_s = state_.PinnedUntilWallS(id);
  }
  const SlotId slot = entry.copy(TierKind::kNvme).slot;
  const bool queued = state_.devices.catalog->Refresh(slot, times, [this, id, slot](const absl::Status& status) {
    if (!status.ok()) RefreshAgain(id, slot);
  });
  if (!queued) return true;
  entry.times_unrecorded = false;
  entry.recorded_period = current & 3;
  return true;
}

// A pin that was granted is to outlive a restart, whatever the catalog's disk did meanwhile.
void Expiry::RefreshAgain(EntryId id, SlotId slot) {
  if (!state_.index.IsLive(id) || state_.index.at(id).copy(TierKind::kNvme).slot != slot) return;
  state_.index.at(id).times_unrecorded = true;
  state_.timers.Schedule(id, std::min(state_.timers.DueOf(id), state_.NowTick() + kCatalogRetryTicks));
}

void Expiry::EraseOverAge(EntryId id, uint32_t now_tick) {
  TenantState* const tenant = &state_.TenantOf(state_.index.at(id));
  const index::Entry& entry = state_.index.at(id);
  const bool hangs = entry.resident(TierKind::kNvme) &&
                     (state_.devices.nvme->hanging() &
                      tier::SetOfDisk(state_.devices.nvme->DiskOf(entry.copy(TierKind::kNvme).slot))) != tier::kNoDisk;
  const Erasure::Outcome outcome =
      erasure_.Start(id, policy::DropReason::kMaxAge, [this, tenant](const absl::Status&) { state_.Wake(*tenant); });
  // Looked at again even when it was started: a queue may have had no room for one of its copies.
  state_.timers.Schedule(id, now_tick + (outcome == Erasure::Outcome::kQueueFull && !hangs ? 1 : kTimerBusyTicks));
}

void Expiry::RearmSome() {
  if (state_.devices.ciphers != nullptr) {
    const uint64_t keys = state_.devices.ciphers->key_changes();
    if (std::exchange(key_changes_, keys) != keys) state_.timers_late = true;
  }
  // All once more, from where it is: were it to begin anew, changes that come often would keep it from the end.
  if (std::exchange(state_.timers_late, false)) rearm_left_ = state_.index.id_limit();
  for (uint32_t looked = 0; looked < kSweepEntriesPerTick && rearm_left_ > 0; ++looked, --rearm_left_) {
    if (rearm_at_ >= state_.index.id_limit()) rearm_at_ = 0;
    const EntryId id(rearm_at_++);
    if (state_.index.IsLive(id) && state_.index.at(id).state == BlockState::kCommitted) state_.Arm(id);
  }
}

void Expiry::KeepTime(uint32_t now_tick) {
  if (state_.devices.catalog == nullptr || now_tick < time_kept_tick_ + kTimeKeptTicks) return;
  time_kept_tick_ = now_tick;
  state_.devices.catalog->KeepTime(state_.WallMsOfTick(now_tick));
}

void Expiry::GiveBackIdleExtents(TenantState& tenant) {
  if (!tenant.memory_open || state_.devices.dram->EmptyBytes(tenant.domain()) == 0) {
    tenant.empty_ticks = 0;
    return;
  }
  if (++tenant.empty_ticks < kEmptyTicksMax) return;
  tenant.empty_ticks = 0;
  space_.GiveBackEmpty(tenant);
}

}  // namespace kvartal::engine
