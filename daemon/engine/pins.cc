#include "daemon/engine/pins.h"

#include <algorithm>
#include <vector>

namespace kvartal::engine {

using index::Entry;
using policy::Refusal;

uint64_t Pins::GuaranteeBytes(const TenantState& tenant) {
  return tenant.rules.tier(TierKind::kDram).guarantee_bytes + tenant.rules.tier(TierKind::kNvme).guarantee_bytes;
}

Refusal Pins::WhyNot(EntryId id, uint32_t until_tick) const {
  const Entry& entry = state_.index.at(id);
  TierKind tier;
  if (!state_.FindTier(id, state_.NowTick(), &tier)) return Refusal::kGone;
  const policy::TenantRules& rules = state_.tenant(state_.ns(entry.ns).tenant).rules;
  return until_tick > policy::AgeLimitOf(rules, state_.AgesOf(id, state_.NowTick())) ? Refusal::kTooLong
                                                                                     : Refusal::kNone;
}

Refusal Pins::Pin(std::span<const Hold> blocks, int64_t until_wall_ms) {
  const int64_t now_wall_ms = state_.devices.clock->WallMs();
  if (blocks.empty() || until_wall_ms <= now_wall_ms) return Refusal::kNone;
  TenantState& tenant = state_.TenantOf(state_.index.at(blocks.front().entry));
  const auto refuse = [&](Refusal reason) {
    state_.NoteRefusal(tenant, TierKind::kDram, reason, 0);
    return reason;
  };
  if (until_wall_ms - now_wall_ms > kPinMsMax) return refuse(Refusal::kTooLong);
  const uint32_t until_tick =
      state_.NowTick() + static_cast<uint32_t>((until_wall_ms - now_wall_ms + kTickMs - 1) / kTickMs);
  uint64_t more_bytes = 0;
  for (const Hold block : blocks) {
    if (const Refusal reason = WhyNot(block.entry, until_tick); reason != Refusal::kNone) return refuse(reason);
    const Entry& entry = state_.index.at(block.entry);
    if (!entry.pinned) more_bytes += state_.SlotBytesOf(entry);
  }
  if (tenant.pinned_bytes + more_bytes > GuaranteeBytes(tenant)) return refuse(Refusal::kTenantLimit);
  for (const Hold block : blocks) {
    Set(block.entry, until_tick);
    MakeDurable(block.entry);
  }
  return Refusal::kNone;
}

void Pins::Set(EntryId id, uint32_t until_tick) {
  Entry& entry = state_.index.at(id);
  residency_.SetPinned(id, true);
  uint32_t& until = state_.TenantOf(entry).pins[id];
  until = std::max(until, until_tick);
  entry.times_unrecorded =
      state_.devices.catalog != nullptr &&
      (entry.resident(TierKind::kNvme) || state_.TenantOf(entry).rules.tier(TierKind::kNvme).limit_bytes > 0);
  // Its timer writes the record down, and then waits for the end.
  state_.timers.Schedule(id, entry.times_unrecorded ? state_.NowTick() : until);
}

bool Pins::Adopt(EntryId id, uint32_t until_wall_s) {
  const int64_t left_ms = int64_t{until_wall_s} * 1000 - state_.WallMsOfTick(state_.NowTick());
  if (left_ms <= 0) return false;
  const Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  if (tenant.dropping || tenant.pinned_bytes + state_.SlotBytesOf(entry) > GuaranteeBytes(tenant)) return false;
  // A wall clock that was wrong may not make it longer than any pin may be.
  Set(id, state_.NowTick() + static_cast<uint32_t>(std::min(left_ms, kPinMsMax) / kTickMs));
  state_.index.at(id).times_unrecorded = left_ms > kPinMsMax;
  return true;
}

void Pins::End(EntryId id) {
  residency_.SetPinned(id, false);
  state_.Arm(id);  // its TTL counts again
}

void Pins::EndAll(TenantState& tenant) {
  while (!tenant.pins.empty()) End(tenant.pins.begin()->first);
}

void Pins::MakeDurable(EntryId id) {
  const Entry& entry = state_.index.at(id);
  if (!entry.pinned || entry.resident(TierKind::kNvme) || entry.writing) return;
  if (state_.NvmeUsable(state_.TenantOf(entry))) movement_.StartWrite(id, Movement::WriteReason::kWriteThrough);
}

void Pins::Yield(TenantState& tenant, uint32_t max_blocks) {
  for (uint32_t ended = 0; ended < max_blocks && tenant.pinned_bytes > GuaranteeBytes(tenant); ++ended) {
    End(tenant.pins.begin()->first);
  }
  for (TierKind tier : {TierKind::kDram, TierKind::kNvme}) {
    const policy::Account& account = state_.ledger.account(tenant.id, tier);
    if (account.charged_bytes > account.limit_bytes && tenant.order(tier).size() == 0) {
      YieldToLimit(tenant, tier, max_blocks);
    }
  }
}

void Pins::YieldToLimit(TenantState& tenant, TierKind tier, uint32_t max_blocks) {
  std::vector<std::pair<EntryId, uint32_t>> pinned;
  for (const auto& pin : tenant.pins) {
    if (pinned.size() == max_blocks) break;
    if (state_.index.at(pin.first).resident(tier)) pinned.push_back(pin);
  }
  for (const auto& [id, until_tick] : pinned) {
    const policy::Account& account = state_.ledger.account(tenant.id, tier);
    if (account.charged_bytes <= account.limit_bytes) return;
    if (tier == TierKind::kDram && space_.GiveBackEmpty(tenant) > 0) continue;
    End(id);
    if (!residency_.Evictable(id, tier)) {
      Set(id, until_tick);  // read in place or moving: later
      continue;
    }
    residency_.DropCopy(id, tier, policy::DropReason::kOverLimit);
    // A pin keeps the block, wherever it may be.
    if (state_.index.IsLive(id) && state_.index.at(id).state == BlockState::kCommitted) Set(id, until_tick);
  }
}

}  // namespace kvartal::engine
