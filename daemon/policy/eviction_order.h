// Which block of one tenant in one tier goes first. The seam for eviction policies: LRU now, hit density later.
// Confined to the engine loop.
// Invariant: holds exactly the blocks that are leaves in its tier (resident, no resident child), that nobody reads in
// place and nobody pinned; moving and protected ones stay in it and are passed over by Victim.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "daemon/base/ids.h"
#include "daemon/base/status.h"

namespace kvartal::policy {

// What an order may know of a block.
struct BlockTraits {
  uint64_t last_touch = 0;  // number of the last request that touched it
  uint32_t depth = 0;       // position in its chain
  uint32_t last_access_tick = 0;
  uint8_t frequency = 0;
};

class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;

  virtual void Insert(EntryId id, const BlockTraits& traits) = 0;
  // `traits` as given to the last Insert or Touch of this block.
  virtual void Remove(EntryId id, const BlockTraits& traits) = 0;
  virtual void Touch(EntryId id, const BlockTraits& before, const BlockTraits& after) = 0;

  // The first block that `may_evict` accepts, None when there is none or after `probe_max` refused ones.
  virtual EntryId Victim(absl::FunctionRef<bool(EntryId)> may_evict, uint32_t probe_max) const = 0;
  // The block that was idle longest, for TTL. None when empty.
  virtual EntryId Oldest() const = 0;
  virtual size_t size() const = 0;
};

// Oldest request first and, within a request, the deepest block first: LRU over leaves, tail first.
std::unique_ptr<EvictionOrder> NewLruOrder();
// By its configuration name ("lru"). InvalidArgument names what is allowed.
absl::StatusOr<std::unique_ptr<EvictionOrder>> NewEvictionOrder(std::string_view name);

}  // namespace kvartal::policy
