// A cache of equal blocks driven by the real eviction orders the way the engine drives them: only leaves are in the
// order, every use is told to the history, a parent enters the order when its last child leaves.
// Invariant: a resident block's parent is resident.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/policy/tenant_orders.h"

namespace kvartal::policy {

inline constexpr uint32_t kReplayBlockTokens = 512;

class ReplayCache {
 public:
  ReplayCache(std::string_view eviction, size_t capacity)
      : capacity_(capacity),
        orders_(*NewTenantOrders(eviction)),
        order_(*orders_.tiers[TierIndex(TierKind::kDram)].front()) {}

  // Serves a chain of block numbers. Returns how many blocks from its front were there.
  size_t Serve(uint32_t tick, const std::vector<uint64_t>& chain) {
    ++request_;
    for (const uint64_t block : chain) {
      if (block >= blocks_.size()) blocks_.resize(block + 1);
    }
    size_t matched = 0;
    while (matched < chain.size() && blocks_[chain[matched]].resident) ++matched;
    const bool goes_on = matched * kReplayBlockTokens >= kContinuingTokens;
    const size_t touched = std::min(chain.size(), capacity_);
    for (size_t depth = 0; depth < touched; ++depth) {
      Use(chain, depth, tick, goes_on ? SessionPhase::kContinuing : SessionPhase::kNew);
    }
    while (resident_ > capacity_) EvictOne();
    return matched;
  }

  size_t resident() const { return resident_; }
  size_t leaves() const { return order_.size(); }
  const std::vector<uint32_t>& victims() const { return victims_; }

 private:
  struct Block {
    BlockTraits traits;
    uint32_t parent = kNone;
    uint32_t children = 0;
    bool resident = false;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void Use(const std::vector<uint64_t>& chain, size_t depth, uint32_t tick, SessionPhase phase) {
    const auto number = static_cast<uint32_t>(chain[depth]);
    Block& block = blocks_[number];
    const bool was_resident = std::exchange(block.resident, true);
    PastUse past;
    if (was_resident) {
      past = PastUseOf(block.traits);
      if (block.children == 0) order_.Remove(EntryId(number), block.traits);
    } else {
      ++resident_;
      if (orders_.history != nullptr) past = orders_.history->ghosts.Recall(number);
      if (depth > 0) Adopt(static_cast<uint32_t>(chain[depth - 1]), &block);
    }
    block.traits.last_touch = request_;
    block.traits.depth = static_cast<uint32_t>(depth);
    block.traits.offset_tokens = depth * kReplayBlockTokens;
    block.traits.last_access_tick = tick;
    block.traits.frequency = static_cast<uint8_t>(std::min(past.frequency + 1, 255));
    block.traits.phase = phase;
    if (orders_.history != nullptr) orders_.history->classes.Use(past, ReuseClassOf(block.traits), tick);
    if (block.children == 0) order_.Insert(EntryId(number), block.traits);
  }

  void Adopt(uint32_t parent_number, Block* child) {
    Block& parent = blocks_[parent_number];
    child->parent = parent_number;
    if (parent.children++ == 0) order_.Remove(EntryId(parent_number), parent.traits);
  }

  void EvictOne() {
    const EntryId victim =
        order_.Victim([this](EntryId id) { return blocks_[id.value()].traits.last_touch != request_; }, UINT32_MAX);
    KV_CHECK(victim.valid());
    Block& block = blocks_[victim.value()];
    KV_CHECK(block.resident && block.children == 0);
    order_.Remove(victim, block.traits);
    order_.Evicted(block.traits);
    block.resident = false;
    --resident_;
    if (orders_.history != nullptr) {
      orders_.history->ghosts.Remember(victim.value(), PastUseOf(block.traits), resident_, 1);
    }
    victims_.push_back(victim.value());
    if (block.parent == kNone) return;
    Block& parent = blocks_[block.parent];
    if (--parent.children == 0) order_.Insert(EntryId(block.parent), parent.traits);
  }

  const size_t capacity_;
  TenantOrders orders_;
  EvictionOrder& order_;
  std::vector<Block> blocks_;  // by number
  std::vector<uint32_t> victims_;
  size_t resident_ = 0;
  uint64_t request_ = 0;
};

}  // namespace kvartal::policy
