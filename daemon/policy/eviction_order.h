// Which block of one tenant in one tier goes first. The seam for eviction policies: LRU, or hit density (lhd_order.h).
// Confined to the engine loop.
// Invariant: holds exactly the blocks that are leaves in its tier (resident, no resident child), that nobody reads in
// place and nobody pinned; moving and protected ones stay in it and are passed over by Victim.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "daemon/base/ids.h"
#include "daemon/base/status.h"

namespace kvartal::policy {

// Where the conversation of a block stands, as its last request showed or its client said since.
enum class SessionPhase : uint8_t {
  kNew,         // the request found little of its chain: a first turn, or a stranger
  kContinuing,  // it found a stretch of it: a later turn
  kEnded,       // a client said that it is over
};

// What a client may say of the conversation whose blocks it holds. Advice: no bytes move for it.
enum class SessionHint : uint8_t {
  kEnded,    // nobody will ask for the rest of its chain again
  kWaiting,  // for a tool or a person, and comes back: as if it had been asked for just now
};

// What an order may know of a block.
struct BlockTraits {
  uint64_t last_touch = 0;     // number of the last request that touched it
  uint64_t offset_tokens = 0;  // tokens of its chain in front of it
  NamespaceId ns;
  uint32_t slot_bytes = 1;
  uint32_t depth = 0;  // position in its chain
  uint32_t last_access_tick = 0;
  uint8_t frequency = 0;  // requests that used it, saturating
  SessionPhase phase = SessionPhase::kNew;
};

inline bool AnyNamespace(NamespaceId) { return true; }

class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;

  virtual void Insert(EntryId id, const BlockTraits& traits) = 0;
  // `traits` as given to the last Insert of this block.
  virtual void Remove(EntryId id, const BlockTraits& traits) = 0;
  // Blocks of a retired namespace go before all others. Any number of them changes sides in constant time; a namespace
  // nobody spoke of is not retired. After them go the blocks of conversations that have ended.
  virtual void SetRetired(NamespaceId ns, bool retired) = 0;
  // A copy, still or no longer in the order, was taken for space: what an order may learn from.
  virtual void Evicted(const BlockTraits& traits) = 0;

  // The first block that `may_evict` accepts, None when there is none or after `probe_max` refused ones. A namespace
  // that `may_be_of` refuses is passed over whole: each class of its blocks is as one refused block.
  virtual EntryId Victim(absl::FunctionRef<bool(EntryId)> may_evict, uint32_t probe_max,
                         absl::FunctionRef<bool(NamespaceId)> may_be_of = AnyNamespace) const = 0;
  // Would a block like `first` go before one like `second`? Not both ways.
  virtual bool GoesBefore(const BlockTraits& first, const BlockTraits& second) const = 0;
  // The block that was idle longest, for TTL. None when empty.
  virtual EntryId Oldest() const = 0;
  virtual size_t size() const = 0;
};

// Oldest request first and, within a request, the deepest block first: LRU over leaves, tail first.
std::unique_ptr<EvictionOrder> NewLruOrder();

}  // namespace kvartal::policy
