#include "daemon/engine/load_path.h"

#include <algorithm>
#include <limits>
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

void LoadPath::Lease(EntryId id) {
  Entry& entry = state_.index.at(id);
  KV_CHECK(entry.lease_count < std::numeric_limits<uint16_t>::max());
  ++entry.lease_count;
  ++state_.leased_blocks;
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
  for (const EntryId id : found_) {
    TierKind tier;
    if (!id.valid() || !state_.FindTier(state_.index.at(id), now_tick, &tier)) break;
    if (state_.index.at(id).lease_count == std::numeric_limits<uint16_t>::max()) break;
    residency_.Touch(id, result.request, now_tick);
    Lease(id);
    places->push_back(tier == TierKind::kDram ? PlaceInDram(id) : BlockPlace{id, tier, 0, 0});
  }
  result.matched = static_cast<uint32_t>(places->size());

  TenantStats& stats = state_.tenant(space.tenant).stats;
  const uint64_t block_tokens = space.layout.tokens_per_block;
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
  return result;
}

void LoadPath::Load(NamespaceId ns, std::vector<EntryId> entries, CacheEngine::LoadDone done) {
  TenantState& tenant = state_.tenant(state_.ns(ns).tenant);
  for (const EntryId id : entries) Lease(id);
  auto operation = std::make_shared<LoadOperation>(this, &tenant, std::move(entries), std::move(done));
  LoadOperation::Start(std::move(operation));
}

void LoadPath::Release(std::span<const EntryId> entries) {
  TenantState* tenant = nullptr;
  for (const EntryId id : entries) {
    Entry& entry = state_.index.at(id);
    KV_CHECK(entry.lease_count > 0 && state_.leased_blocks > 0);
    --entry.lease_count;
    --state_.leased_blocks;
    tenant = &state_.TenantOf(entry);
    if (entry.lease_count == 0 && entry.state != BlockState::kCommitted) residency_.EraseIfGone(id);
  }
  if (tenant != nullptr) state_.Wake(*tenant);
}

Refusal LoadPath::Pin(std::span<const EntryId> entries, int64_t until_wall_ms) {
  if (entries.empty()) return Refusal::kNone;
  TenantState& tenant = state_.TenantOf(state_.index.at(entries.front()));
  uint64_t more_bytes = 0;
  for (const EntryId id : entries) {
    const Entry& entry = state_.index.at(id);
    if (!entry.pinned) more_bytes += state_.SlotBytesOf(entry);
  }
  const uint64_t guarantee_bytes =
      tenant.rules.tier(TierKind::kDram).guarantee_bytes + tenant.rules.tier(TierKind::kNvme).guarantee_bytes;
  if (tenant.pinned_bytes + more_bytes > guarantee_bytes) return Refusal::kTenantLimit;
  const int64_t left_ms = std::clamp<int64_t>(until_wall_ms - state_.devices.clock->WallMs(), 0, kPinMsMax);
  const uint32_t until_tick = state_.NowTick() + static_cast<uint32_t>(left_ms / kTickMs);
  for (const EntryId id : entries) {
    Entry& entry = state_.index.at(id);
    if (!entry.pinned) tenant.pinned_bytes += state_.SlotBytesOf(entry);
    entry.pinned = true;
    uint32_t& until = state_.pins[id];
    until = std::max(until, until_tick);
  }
  return Refusal::kNone;
}

}  // namespace kvartal::engine
