#include "daemon/engine/load_path.h"

#include <algorithm>
#include <array>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/engine/load_operation.h"

namespace kvartal::engine {

using index::Entry;
using policy::Refusal;

BlockPlace LoadPath::PlaceInDram(EntryId id) const {
  const Entry& entry = state_.index.at(id);
  const SlotId slot = entry.copy(TierKind::kDram).slot;
  const DomainId domain(state_.ns(entry.ns).tenant.value());
  return {id, TierKind::kDram, state_.devices.dram->GenerationOf(domain, slot), tier::DramTier::OffsetOf(slot)};
}

bool LoadPath::TryKeep(Hold hold) {
  if (!space_.MayUse(hold)) return false;
  if (hold.in_place) {
    if (!residency_.AddLease(hold.entry)) return false;
  } else {
    return AddHold(hold.entry);
  }
  ++state_.held_blocks;
  return true;
}

bool LoadPath::AddHold(EntryId id) {
  uint16_t& holds = state_.index.at(id).hold_count;
  if (holds == kHoldsPerBlockMax) return false;
  ++holds;
  ++state_.held_blocks;
  return true;
}

Refusal LoadPath::NoteNotLeased(EntryId id) {
  const Entry& entry = state_.index.at(id);
  TenantState& tenant = state_.TenantOf(entry);
  Refusal reason = entry.lease_count == kHoldsPerBlockMax ? Refusal::kGroupLimit : Refusal::kOwed;
  const bool drains = tenant.stuck_on_nvme || tenant.stuck_on_entries || space_.AboveLimit(tenant, TierKind::kDram);
  if (drains && reason == Refusal::kOwed) reason = Refusal::kTenantLimit;
  state_.NoteRefusal(tenant, TierKind::kDram, reason, state_.SlotBytesOf(entry));
  return reason;
}

LookupResult LoadPath::Lookup(NamespaceId ns, std::span<const BlockKey> keys, uint64_t prompt_tokens, uint64_t request,
                              std::vector<BlockPlace>* places) {
  const NamespaceState& space = state_.ns(ns);
  LookupResult result;
  result.request = request != 0 ? request : state_.NextRequest();
  found_.resize(keys.size());
  state_.index.FindChain(ns, keys, found_);
  const uint32_t now_tick = state_.NowTick();
  places->clear();
  bool in_place = true;
  TenantStats& stats = state_.tenant(space.tenant).stats;
  const uint64_t block_tokens = space.layout.tokens_per_block;
  std::array<uint64_t, kTierCount> found_tokens{};
  for (const EntryId id : found_) {
    TierKind tier;
    if (!id.valid() || !state_.FindTier(id, now_tick, &tier)) break;
    in_place = in_place && tier == TierKind::kDram;
    if (!TryKeep({id, in_place})) {
      if (in_place) NoteNotLeased(id);
      break;
    }
    found_tokens[TierIndex(tier)] += block_tokens;
    places->push_back(in_place ? PlaceInDram(id) : BlockPlace{id, TierKind::kNvme, 0, 0});
  }
  result.matched = static_cast<uint32_t>(places->size());
  // Frames after the first of a chain come when all before them matched.
  const bool goes_on =
      request != 0 || uint64_t{result.matched} * space.layout.tokens_per_block >= policy::kContinuingTokens;
  const auto phase = goes_on ? policy::SessionPhase::kContinuing : policy::SessionPhase::kNew;
  for (const BlockPlace& place : *places) residency_.Touch(place.entry, result.request, now_tick, phase);
  size_t in_dram = 0;
  while (in_dram < places->size() && (*places)[in_dram].tier == TierKind::kDram) ++in_dram;
  state_.NoteMisses(state_.tenant(space.tenant), ns, keys.subspan(in_dram), std::span(found_).subspan(in_dram));

  if (request == 0) {
    ++stats.lookups;
    stats.tokens_asked += prompt_tokens != 0 ? prompt_tokens : keys.size() * block_tokens;
  }
  stats.blocks_asked += keys.size();
  stats.blocks_hit += result.matched;
  // Only the last block of a prompt can be partial, so a full match of it counts what the prompt really has.
  uint64_t hit_tokens = result.matched * block_tokens;
  if (request == 0 && prompt_tokens != 0) hit_tokens = std::min(hit_tokens, prompt_tokens);
  stats.tokens_hit += hit_tokens;
  for (size_t i = 0; i < kTierCount; ++i) {
    const uint64_t served = std::min(found_tokens[i], hit_tokens);
    stats.tiers[i].tokens_served += served;
    hit_tokens -= served;
  }
  return result;
}

void LoadPath::Load(LoadRequest request, CacheEngine::LoadDone done) {
  size_t kept = 0;
  // Whoever asks holds them already: what has to go is found out block by block.
  while (kept < request.entries.size() && AddHold(request.entries[kept])) ++kept;
  const Refusal cut_short = kept < request.entries.size() ? Refusal::kGroupLimit : Refusal::kNone;
  if (cut_short != Refusal::kNone && !request.ahead) {
    const index::Entry& entry = state_.index.at(request.entries[kept]);
    state_.NoteRefusal(state_.TenantOf(entry), TierKind::kDram, cut_short, state_.SlotBytesOf(entry));
  }
  request.entries.resize(kept);
  LoadOperation::Start(std::make_shared<LoadOperation>(this, std::move(request), cut_short, std::move(done)));
}

void LoadPath::GiveUp(Refusal reason, absl::FunctionRef<bool(const LoadOperation&)> is_over) {
  std::vector<std::shared_ptr<LoadOperation>> over;
  for (const auto& operation : unanswered_) {
    if (is_over(*operation)) over.push_back(operation);
  }
  for (const auto& operation : over) operation->GiveUp(reason);
}

void LoadPath::EndSession(SessionId session) {
  GiveUp(Refusal::kGone, [&](const LoadOperation& operation) { return operation.session() == session; });
}

void LoadPath::Tick() {
  const uint32_t now_tick = state_.NowTick();
  GiveUp(Refusal::kLate, [&](const LoadOperation& operation) { return operation.due_tick() <= now_tick; });
  GiveUp(Refusal::kGone, [&](const LoadOperation& operation) { return operation.MustLetGo(now_tick); });
}

void LoadPath::Release(std::span<const Hold> holds) {
  TenantState* tenant = nullptr;
  const uint32_t now_tick = state_.NowTick();
  for (const Hold hold : holds) {
    Entry& entry = state_.index.at(hold.entry);
    tenant = &state_.TenantOf(entry);
    KV_CHECK(state_.held_blocks > 0);
    --state_.held_blocks;
    if (hold.in_place) {
      residency_.EndLease(hold.entry, now_tick);
    } else {
      KV_CHECK(entry.hold_count > 0);
      --entry.hold_count;
    }
    if (!entry.in_use()) residency_.EraseIfGone(hold.entry);
  }
  if (tenant != nullptr) state_.Wake(*tenant);
}

void LoadPath::Hint(std::span<const Hold> chain, policy::SessionHint hint) {
  if (hint == policy::SessionHint::kWaiting) {
    const uint64_t request = state_.NextRequest();
    for (const Hold hold : chain) residency_.Refresh(hold.entry, request, state_.NowTick());
    return;
  }
  // From the end, to where another conversation branches off: what lies before that is not this one's alone.
  EntryId child;
  for (auto hold = chain.rbegin(); hold != chain.rend(); ++hold) {
    const uint32_t own_children = child.valid() && state_.index.at(child).parent == hold->entry ? 1 : 0;
    if (state_.index.at(hold->entry).children > own_children) return;
    residency_.SetEnded(hold->entry);
    child = hold->entry;
  }
}

}  // namespace kvartal::engine
