#include "daemon/engine/receipts.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"

namespace kvartal::engine {

using policy::DropReason;
using tier::ErasureRecord;

namespace {

constexpr DropReason kReasons[] = {DropReason::kMaxAge, DropReason::kRemoved};

void Add(const DeletionReceipt& from, DeletionReceipt* to) {
  to->blocks += from.blocks;
  for (size_t i = 0; i < kTierCount; ++i) to->tier_bytes[i] += from.tier_bytes[i];
  to->unerased_blocks += from.unerased_blocks;
  const int64_t oldest_ms = to->oldest_first_commit_ms;
  if (oldest_ms == 0 || (from.oldest_first_commit_ms != 0 && from.oldest_first_commit_ms < oldest_ms))
    to->oldest_first_commit_ms = from.oldest_first_commit_ms;
  to->resumed = to->resumed || from.resumed;
}

// As it is called now: its old name may be somebody else's. What an earlier process left says itself whose it is.
std::string NameFor(const TenantState& tenant, const DeletionReceipt& receipt) {
  return receipt.resumed && !receipt.tenant.empty() ? receipt.tenant : tenant.stats.name;
}

}  // namespace

OpenReceipt& Receipts::Of(TenantState& tenant, DropReason reason) {
  KV_CHECK(reason == DropReason::kMaxAge || reason == DropReason::kRemoved);
  return reason == DropReason::kMaxAge ? tenant.over_age : tenant.removal;
}

void Receipts::Open(TenantState& tenant, int64_t before_wall_ms) {
  OpenReceipt& receipt = tenant.removal;
  receipt.running = true;
  receipt.before_wall_ms = before_wall_ms;
  Persist(tenant, DropReason::kRemoved);
}

void Receipts::Resume(TenantState& tenant, const ErasureRecord& record) {
  const bool removal = record.kind == ErasureRecord::Kind::kRemoval;
  OpenReceipt& receipt = removal ? tenant.removal : tenant.over_age;
  receipt.running = removal;
  receipt.before_wall_ms = record.before_wall_ms;
  if (receipt.erasure == 0) {
    receipt.erasure = record.id;
  } else if (state_.devices.catalog != nullptr) {
    state_.devices.catalog->EndErasure(record.id);  // it is in the other one from now on
  }
  DeletionReceipt left;
  left.resumed = true;
  left.blocks = record.blocks;
  left.tier_bytes[TierIndex(TierKind::kDram)] = record.dram_bytes;
  left.tier_bytes[TierIndex(TierKind::kNvme)] = record.nvme_bytes;
  left.unerased_blocks = record.unzeroed_blocks;
  left.oldest_first_commit_ms = record.oldest_first_commit_ms;
  Add(left, &receipt.sum);
  receipt.sum.tenant = record.tenant;
  Persist(tenant, removal ? DropReason::kRemoved : DropReason::kMaxAge);
}

void Receipts::Count(TenantState& tenant, DropReason reason, EntryId id, const Copies& erased, bool zeroed) {
  const index::Entry& entry = state_.index.at(id);
  DeletionReceipt one;
  one.blocks = 1;
  one.oldest_first_commit_ms = state_.WallMsOfTick(entry.first_commit_tick);
  for (const TierKind tier : kAllTiers) {
    const size_t at = TierIndex(tier);
    if (!erased[at] && entry.resident(tier)) one.blocks = 0;
    if (erased[at] && (zeroed || tier == TierKind::kDram)) one.tier_bytes[at] = state_.SlotBytesOf(entry);
  }
  if (!zeroed) {
    one.unerased_blocks = 1;
    NoteUnzeroed(tenant.owner, tenant.stats.name);
  }
  Add(one, &Of(tenant, reason).sum);
}

void Receipts::NoteUnzeroed(const tier::OwnerUidHash& owner, const std::string& tenant) {
  UnzeroedBlocks& unzeroed = state_.unzeroed[owner];
  ++unzeroed.blocks;
  if (state_.devices.catalog == nullptr) return;
  if (unzeroed.erasure == 0) unzeroed.erasure = ++state_.last_erasure;
  state_.devices.catalog->PutErasure({.id = unzeroed.erasure,
                                      .kind = ErasureRecord::Kind::kUnzeroed,
                                      .owner = owner,
                                      .tenant = tenant,
                                      .unzeroed_blocks = unzeroed.blocks});
}

// What is told and not kept is owed as well.
void Receipts::Persist(TenantState& tenant, DropReason reason) {
  if (state_.devices.catalog == nullptr) return;
  OpenReceipt& receipt = Of(tenant, reason);
  if (receipt.erasure == 0) receipt.erasure = ++state_.last_erasure;
  DeletionReceipt all = receipt.sum;
  if (receipt.told.has_value()) {
    Add(*receipt.told, &all);
    if (all.tenant.empty()) all.tenant = receipt.told->tenant;
  }
  const bool removal = reason == DropReason::kRemoved;
  state_.devices.catalog->PutErasure({.id = receipt.erasure,
                                      .kind = removal ? ErasureRecord::Kind::kRemoval : ErasureRecord::Kind::kMaxAge,
                                      .owner = tenant.owner,
                                      .tenant = NameFor(tenant, all),
                                      .before_wall_ms = receipt.before_wall_ms,
                                      .oldest_first_commit_ms = all.oldest_first_commit_ms,
                                      .blocks = all.blocks,
                                      .dram_bytes = all.tier_bytes[TierIndex(TierKind::kDram)],
                                      .nvme_bytes = all.tier_bytes[TierIndex(TierKind::kNvme)],
                                      .unzeroed_blocks = all.unerased_blocks});
}

DeletionReceipt Receipts::Close(TenantState& tenant) {
  OpenReceipt& receipt = tenant.removal;
  KV_CHECK(receipt.running);
  receipt.running = false;
  // Also what an earlier removal, maxAge, or an earlier life failed at: no receipt may say that it is gone.
  const auto unzeroed = state_.unzeroed.find(tenant.owner);
  receipt.sum.unerased_blocks = unzeroed == state_.unzeroed.end() ? 0 : unzeroed->second.blocks;
  // One at least of each disk that was not there to be looked at. What comes back with it is erased and certified then.
  receipt.sum.unerased_blocks += state_.devices.absent_disks;
  receipt.complete = true;
  DeletionReceipt closed = receipt.sum;
  if (!receipt.telling) Tell(tenant, DropReason::kRemoved);
  return closed;
}

void Receipts::Tick() {
  const uint32_t now_tick = state_.NowTick();
  for (const auto& tenant : state_.tenants) {
    for (const DropReason reason : kReasons) {
      OpenReceipt& receipt = Of(*tenant, reason);
      // A copy that went alone counts with the last one of its block, if there is a block left at all.
      const bool counted = receipt.sum.blocks > 0 || (receipt.sum.bytes() > 0 && tenant->stats.entries == 0);
      if (reason == DropReason::kMaxAge) receipt.complete = counted;
      if (receipt.telling) continue;
      if (receipt.told.has_value() ? now_tick >= receipt.tell_again_tick : receipt.complete) Tell(*tenant, reason);
    }
  }
}

void Receipts::Tell(TenantState& tenant, DropReason reason) {
  OpenReceipt& receipt = Of(tenant, reason);
  if (!receipt.told.has_value()) receipt.told.emplace();
  if (receipt.complete) {
    // What removed it is all that one receipt speaks of: the sum of failures is of the owner's whole past.
    const uint64_t unerased = std::max(receipt.told->unerased_blocks, receipt.sum.unerased_blocks);
    const std::string name = NameFor(tenant, receipt.sum);
    Add(receipt.sum, &*receipt.told);
    if (reason == DropReason::kRemoved) receipt.told->unerased_blocks = unerased;
    receipt.told->tenant = name;
    receipt.told->reason = reason;
    receipt.told->wall_ms = state_.devices.clock->WallMs();
    receipt.sum = {};
    receipt.complete = false;
  }
  receipt.telling = true;
  // A removal flushed before its end.
  if (reason == DropReason::kRemoved || state_.devices.catalog == nullptr) return Ask(tenant, reason);
  aged_.push_back(&tenant);
  FlushAndAsk();
}

// One flush for all that came meanwhile.
void Receipts::FlushAndAsk() {
  if (flushing_ || aged_.empty()) return;
  flushing_ = true;
  state_.devices.catalog->Flush(
      [this, alive = std::weak_ptr<bool>(alive_), tenants = std::exchange(aged_, {})](const absl::Status&) {
        if (alive.expired()) return;
        flushing_ = false;
        for (TenantState* const tenant : tenants) Ask(*tenant, DropReason::kMaxAge);
        FlushAndAsk();
      });
}

void Receipts::Ask(TenantState& tenant, DropReason reason) {
  const OpenReceipt& receipt = Of(tenant, reason);
  auto kept = [this, alive = std::weak_ptr<bool>(alive_), owner = &tenant, reason](bool is_kept) {
    if (!alive.expired()) OnKept(*owner, reason, is_kept);
  };
  if (state_.observer == nullptr) return kept(true);
  const DeletionReceipt told = *receipt.told;  // it may be kept at once
  state_.observer->OnDeletion(told, std::move(kept));
}

void Receipts::OnKept(TenantState& tenant, DropReason reason, bool kept) {
  OpenReceipt& receipt = Of(tenant, reason);
  receipt.telling = false;
  if (!kept) {
    receipt.tell_again_tick = state_.NowTick() + kReceiptRetryTicks;
    return;
  }
  receipt.told.reset();
  if (state_.devices.catalog == nullptr) return;
  if (receipt.owes_nothing()) {
    state_.devices.catalog->EndErasure(std::exchange(receipt.erasure, 0));
  } else {
    Persist(tenant, reason);
  }
}

}  // namespace kvartal::engine
