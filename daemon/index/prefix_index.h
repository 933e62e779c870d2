// Key -> block entry: what is resident, where, who its parent is. Metadata only, no bytes.
// Confined to the engine loop.
// Invariants: an entry is found by exactly one (namespace, key); `children` counts the live entries that name it as
// parent; an entry with children is never erased (it stays as a placeholder without copies); EntryIds are reused after
// Erase only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/ids.h"
#include "daemon/block/block_key.h"
#include "daemon/block/block_state.h"
#include "daemon/block/tier_kind.h"

namespace kvartal::index {

struct TierCopy {
  SlotId slot;            // None: no copy in this tier
  uint32_t children = 0;  // children that have a copy in this tier: 0 means "a leaf here"
};

// One block. 96 bytes: ten million of them are the budget of a node.
struct Entry {
  BlockKey key;
  NamespaceId ns;
  EntryId parent;
  uint32_t children = 0;
  uint32_t depth = 0;  // position in its chain, 0 = head
  std::array<TierCopy, kTierCount> copies;
  uint64_t last_touch = 0;               // number of the last request that touched it, per engine; orders LRU
  uint32_t last_access_tick = 0;         // engine ticks; TTL counts from here
  uint32_t first_commit_tick = 0;        // maxAge counts from here
  uint16_t lease_count = 0;              // readers in place: its DRAM copy may not be dropped
  uint16_t hold_count = 0;               // readers to come: some copy has to stay
  BlockState state = BlockState::kGone;  // kGone, kReserved, kFilling or kCommitted
  uint8_t frequency = 0;                 // requests that used it, saturating: what eviction orders learn from
  bool writing : 1 = false;              // its copy is being written to, or moved within, NVMe: the source may not go
  bool reading : 1 = false;              // its NVMe copy is being read, or zeroed: it may not go
  bool erasing : 1 = false;              // its copies are being zeroed: nobody is served, whatever policy says by now
  bool pinned : 1 = false;               // kept against eviction and TTL, in one tier:
  bool pin_on_nvme : 1 = false;          // there, else in DRAM
  bool durable : 1 = false;              // its NVMe copy is written and its metadata is in the catalog
  bool times_unrecorded : 1 = false;     // its record on disk is missing, or is behind: it does not tell of its pin
  uint8_t recorded_period : 2 = 0;       // of the last access on disk; see engine/expiry.cc
  uint8_t phase : 2 = 0;                 // of its conversation: a policy::SessionPhase
  uint8_t read_errors : 2 = 0;           // of the device, in a row, for its NVMe copy

  TierKind pin_tier() const { return pin_on_nvme ? TierKind::kNvme : TierKind::kDram; }
  bool pinned_in(TierKind tier) const { return pinned && tier == pin_tier(); }
  bool leased_in(TierKind tier) const { return lease_count > 0 && tier == TierKind::kDram; }
  bool in_use() const { return lease_count > 0 || hold_count > 0; }
  TierCopy& copy(TierKind tier) { return copies[TierIndex(tier)]; }
  const TierCopy& copy(TierKind tier) const { return copies[TierIndex(tier)]; }
  bool resident(TierKind tier) const { return copies[TierIndex(tier)].slot.valid(); }
};
static_assert(sizeof(Entry) <= 96);

class PrefixIndex {
 public:
  PrefixIndex();
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // None when absent.
  EntryId Find(NamespaceId ns, const BlockKey& key) const;
  // Finds each key into `out` (same length; None where absent). Probes are prefetched in a pipeline, so a chain costs
  // far less than one cache miss a block. Does not stop at gaps.
  void FindChain(NamespaceId ns, std::span<const BlockKey> keys, std::span<EntryId> out) const;

  // Adds an entry in state kGone with no copies. REQUIRES: absent; `parent` None or live. Raises the parent's
  // `children`.
  EntryId Insert(NamespaceId ns, const BlockKey& key, EntryId parent, uint32_t depth);
  // REQUIRES: no copies, no leases, no I/O under way, children == 0. Lowers the parent's `children`.
  void Erase(EntryId id);

  // Recovery meets children before parents. REQUIRES: `id` has no parent yet; no cycle.
  void SetParent(EntryId id, EntryId parent);

  // Sets (or replaces) or clears the copy of one tier and keeps the parent's per-tier `children` right.
  void SetCopy(EntryId id, TierKind tier, SlotId slot);
  void ClearCopy(EntryId id, TierKind tier);

  // REQUIRES: live (checked). Entries never move: a reference holds until Erase.
  Entry& at(EntryId id) {
    KV_CHECK(IsLive(id));
    return *entries_.Get(id.value());
  }
  const Entry& at(EntryId id) const {
    KV_CHECK(IsLive(id));
    return *entries_.Get(id.value());
  }
  bool IsLive(EntryId id) const { return id.value() < entries_.end && entries_.Get(id.value())->ns.valid(); }

  // Every live id is below this one: for walks over all entries.
  uint32_t id_limit() const { return entries_.end; }

  size_t size() const { return live_; }
  // Bytes held by entries and table, capacity included.
  size_t MemoryBytes() const;

 private:
  // Entries by number, in chunks that never move. Here so that `at` costs no call: a lookup asks a dozen times a block.
  struct Entries {
    static constexpr uint32_t kChunkBits = 16;
    static constexpr uint32_t kPerChunk = 1u << kChunkBits;
    Entry* Get(uint32_t number) const { return chunks[number >> kChunkBits] + (number & (kPerChunk - 1)); }
    std::vector<Entry*> chunks;
    uint32_t end = 0;  // numbers below were given out at least once
  };
  struct Table;

  Entries entries_;
  std::unique_ptr<Table> table_;
  size_t live_ = 0;
};

}  // namespace kvartal::index
