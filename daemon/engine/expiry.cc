#include "daemon/engine/expiry.h"

#include <algorithm>
#include <vector>

namespace kvartal::engine {

using index::Entry;

void Expiry::Tick() {
  const uint32_t now_tick = state_.NowTick();
  if (now_tick % kPinTicks == 0) EndPins(now_tick);
  SweepOldAge(now_tick);
  for (auto& tenant : state_.tenants) {
    for (TierKind tier : {TierKind::kDram, TierKind::kNvme}) ExpireTier(*tenant, tier, now_tick);
    space_.DrainOverLimit(*tenant, kOverLimitBlocksPerTick);
    GiveBackIdleExtents(*tenant);
    state_.Wake(*tenant);
  }
  state_.stray_bytes_punched += state_.devices.dram->PunchStrayPages();
}

void Expiry::EndPins(uint32_t now_tick) {
  std::vector<EntryId> ended;
  for (const auto& [id, until_tick] : state_.pins) {
    if (until_tick <= now_tick) ended.push_back(id);
  }
  for (const EntryId id : ended) residency_.SetPinned(id, false);
}

void Expiry::SweepOldAge(uint32_t now_tick) {
  const uint32_t end = state_.index.id_limit();
  for (uint32_t looked = 0; looked < std::min(end, kSweepEntriesPerTick); ++looked) {
    sweep_at_ = sweep_at_ + 1 < end ? sweep_at_ + 1 : 0;
    const EntryId id(sweep_at_);
    if (!state_.index.IsLive(id)) continue;
    const Entry& entry = state_.index.at(id);
    if (entry.state != BlockState::kCommitted || !state_.OverAge(entry, now_tick)) continue;
    residency_.SetPinned(id, false);  // a pin does not hold against maxAge
    if (!residency_.Removable(id)) continue;
    residency_.DropBlock(id, policy::DropReason::kMaxAge);
  }
}

void Expiry::ExpireTier(TenantState& tenant, TierKind tier, uint32_t now_tick) {
  for (uint32_t work = 0; work < kTickWorkMax; ++work) {
    const EntryId id = tenant.order(tier).Oldest();
    if (!id.valid() || !state_.Expired(state_.index.at(id), tier, now_tick)) return;
    if (!ExpireOne(tenant, id, tier, now_tick)) return;
  }
}

bool Expiry::ExpireOne(TenantState& tenant, EntryId id, TierKind tier, uint32_t now_tick) {
  const Entry& entry = state_.index.at(id);
  if (entry.in_use()) {
    // Held is used: it goes to the young end, so that it does not hide what is idle behind it.
    residency_.Touch(id, state_.NextRequest(), now_tick);
    return true;
  }
  if (!residency_.Removable(id)) return false;
  const bool last_copy = tier == TierKind::kNvme || !entry.resident(TierKind::kNvme);
  if (tier == TierKind::kDram && last_copy && tenant.rules.on_expiry == policy::OnExpiry::kDemote &&
      !state_.Expired(entry, TierKind::kNvme, now_tick)) {
    const WriteStart start = movement_.StartWrite(id, Movement::WriteReason::kExpiry);
    if (start == WriteStart::kStarted || start == WriteStart::kQueueFull) return false;
  }
  residency_.DropCopy(id, tier,
                      {state_.OverAge(entry, now_tick) ? policy::DropReason::kMaxAge : policy::DropReason::kIdle});
  return true;
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
