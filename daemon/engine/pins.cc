#include "daemon/engine/pins.h"

#include <algorithm>
#include <utility>

namespace kvartal::engine {

using index::Entry;
using policy::Refusal;

std::optional<TierKind> Pins::RoomFor(EntryId id) const {
  const Entry& entry = state_.index.at(id);
  const TenantState& tenant = state_.TenantOf(entry);
  // NVMe first: it costs no memory, and outlives the daemon.
  for (const TierKind tier : {TierKind::kNvme, TierKind::kDram}) {
    const uint64_t wanted_bytes = tenant.pinned_bytes[TierIndex(tier)] + residency_.PinBytes(id, tier);
    const bool may_be_there = entry.resident(tier) || (tier == TierKind::kNvme && state_.NvmeUsable(tenant));
    if (may_be_there && wanted_bytes <= tenant.rules.tier(tier).guarantee_bytes) return tier;
  }
  return std::nullopt;
}

Refusal Pins::WhyNot(EntryId id, uint32_t until_tick, const std::vector<EntryId>& ids) const {
  const Entry& entry = state_.index.at(id);
  TierKind tier;
  if (!state_.FindTier(id, state_.NowTick(), &tier)) return Refusal::kGone;
  // In the clear, or without its key: whoever reads it finds it lost.
  if (tier == TierKind::kNvme && !residency_.ServedFromNvme(entry)) return Refusal::kGone;
  const TenantState& tenant = state_.TenantOf(entry);
  if (until_tick > policy::AgeLimitOf(tenant.rules, state_.AgesOf(id, state_.NowTick()))) return Refusal::kTooLong;
  // Without its parent nobody would find it, and nothing before it could be given up.
  if (!entry.parent.valid() || std::binary_search(ids.begin(), ids.end(), entry.parent)) return Refusal::kNone;
  const auto parent = tenant.pins.find(entry.parent);
  return parent != tenant.pins.end() && parent->second >= until_tick ? Refusal::kNone : Refusal::kParentUnpinned;
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
  std::vector<EntryId> ids;  // each once, however often the lease has it
  for (const Hold block : blocks) ids.push_back(block.entry);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const EntryId id : ids) {
    if (const Refusal reason = WhyNot(id, until_tick, ids); reason != Refusal::kNone) return refuse(reason);
  }
  std::vector<EntryId> fresh;
  for (const EntryId id : ids) {
    if (state_.index.at(id).pinned) continue;
    const std::optional<TierKind> tier = RoomFor(id);
    if (!tier.has_value()) {
      for (const EntryId pinned : fresh) residency_.Unpin(pinned);
      return refuse(Refusal::kTenantLimit);
    }
    residency_.Pin(id, *tier);
    fresh.push_back(id);
  }
  for (const EntryId id : ids) Set(id, state_.index.at(id).pin_tier(), until_tick);
  // Not before every one has its time: a search for room asks for that.
  for (const EntryId id : ids) {
    if (state_.index.at(id).pinned_in(TierKind::kNvme)) movement_.WriteThrough(id);
  }
  return Refusal::kNone;
}

void Pins::Set(EntryId id, TierKind tier, uint32_t until_tick) {
  Entry& entry = state_.index.at(id);
  residency_.Pin(id, tier);
  uint32_t& until = state_.TenantOf(entry).pins[id];
  until = std::max(until, until_tick);
  // What is still to be written to NVMe at all is so, whatever tier the pin is in.
  entry.times_unrecorded = tier == TierKind::kNvme || (entry.times_unrecorded && !entry.resident(TierKind::kNvme));
  // Its timer writes the record down, and then waits for the end; in DRAM it may be about to move the pin to NVMe.
  state_.timers.Schedule(id, tier == TierKind::kNvme ? state_.NowTick() : std::min(state_.timers.DueOf(id), until));
}

bool Pins::Adopt(EntryId id, uint32_t until_wall_s) {
  const int64_t left_ms = int64_t{until_wall_s} * 1000 - state_.WallMsOfTick(state_.NowTick());
  if (left_ms <= 0 || state_.TenantOf(state_.index.at(id)).dropping) return false;
  // One that another record told of is covered already, for as long as may be.
  if (!state_.index.at(id).pinned_in(TierKind::kNvme) && RoomFor(id) != TierKind::kNvme) return false;
  // A wall clock that was wrong may not make it longer than any pin may be.
  Set(id, TierKind::kNvme, state_.NowTick() + static_cast<uint32_t>(std::min(left_ms, kPinMsMax) / kTickMs));
  state_.index.at(id).times_unrecorded = left_ms > kPinMsMax;
  return true;
}

void Pins::MoveToNvme(EntryId id) {
  const Entry& entry = state_.index.at(id);
  if (!entry.pinned_in(TierKind::kDram) || !entry.resident(TierKind::kNvme)) return;
  if (!state_.NvmeReadable(id) || !residency_.ServedFromNvme(entry)) return;
  if (RoomFor(id) == TierKind::kNvme) Set(id, TierKind::kNvme, state_.TenantOf(entry).pins.at(id));
}

void Pins::End(EntryId id) {
  residency_.Unpin(id);
  state_.Arm(id);  // its TTL counts again
}

void Pins::EndAll(TenantState& tenant) {
  while (!tenant.pins.empty()) End(tenant.pins.begin()->first);
}

void Pins::Resettle(EntryId id, uint32_t until_tick) {
  End(id);
  if (const std::optional<TierKind> tier = RoomFor(id)) Set(id, *tier, until_tick);
}

void Pins::Yield(TenantState& tenant, uint32_t max_blocks) {
  for (const TierKind tier : {TierKind::kDram, TierKind::kNvme}) {
    YieldToGuarantee(tenant, tier, max_blocks);
    const policy::Account& account = state_.ledger.account(tenant.id, tier);
    if (account.charged_bytes > account.limit_bytes) YieldToLimit(tenant, tier, max_blocks);
  }
}

void Pins::YieldToGuarantee(TenantState& tenant, TierKind tier, uint32_t max_blocks) {
  std::vector<EntryId>& yielding = tenant.yielding_pins[TierIndex(tier)];
  const uint64_t guarantee_bytes = tenant.rules.tier(tier).guarantee_bytes;
  const uint64_t& pinned_bytes = tenant.pinned_bytes[TierIndex(tier)];
  if (pinned_bytes > guarantee_bytes && yielding.empty()) yielding = PinsByDepth(tenant, tier);
  for (; pinned_bytes > guarantee_bytes && !yielding.empty() && max_blocks > 0; --max_blocks) {
    const auto pin = tenant.pins.find(yielding.back());
    yielding.pop_back();
    if (pin != tenant.pins.end() && state_.index.at(pin->first).pinned_in(tier)) Resettle(pin->first, pin->second);
  }
  if (pinned_bytes <= guarantee_bytes) yielding = {};
}

// The ends of chains last: they go first, so that what stays pinned can be found.
std::vector<EntryId> Pins::PinsByDepth(const TenantState& tenant, TierKind tier) const {
  std::vector<std::pair<uint32_t, EntryId>> by_depth;
  for (const auto& [id, until_tick] : tenant.pins) {
    const Entry& entry = state_.index.at(id);
    if (entry.pinned_in(tier)) by_depth.emplace_back(entry.depth, id);
  }
  std::sort(by_depth.begin(), by_depth.end());
  std::vector<EntryId> ids;
  ids.reserve(by_depth.size());
  for (const auto& [depth, id] : by_depth) ids.push_back(id);
  return ids;
}

void Pins::YieldToLimit(TenantState& tenant, TierKind tier, uint32_t max_blocks) {
  const auto may_go = [&](EntryId id) { return residency_.Evictable(id, tier); };
  if (residency_.First(tenant, tier, may_go).valid()) return;  // others are left
  std::vector<std::pair<EntryId, uint32_t>> pinned;
  for (const auto& pin : tenant.pins) {
    if (pinned.size() == max_blocks) break;
    if (state_.index.at(pin.first).resident(tier)) pinned.push_back(pin);
  }
  for (const auto& [id, until_tick] : pinned) {
    const policy::Account& account = state_.ledger.account(tenant.id, tier);
    if (account.charged_bytes <= account.limit_bytes) return;
    if (tier == TierKind::kDram && space_.GiveBackEmpty(tenant) > 0) continue;
    const TierKind kept_in = state_.index.at(id).pin_tier();
    End(id);
    if (!residency_.Evictable(id, tier)) {
      Set(id, kept_in, until_tick);  // read in place or moving: later
      continue;
    }
    residency_.DropCopy(id, tier, policy::DropReason::kOverLimit);
    // A pin keeps the block, wherever it may be.
    if (state_.index.IsLive(id) && state_.index.at(id).state == BlockState::kCommitted) Resettle(id, until_tick);
  }
}

}  // namespace kvartal::engine
