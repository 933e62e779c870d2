// The keys of blocks that a tenant lost in one tier for want of space, so that a later wish for one of them tells how
// much more space would have been of use. Misses of anything else count for nothing: who scans earns nothing.
// Confined to the engine loop.
// Invariants: at most `bytes_max` bytes of blocks and `keys_max` keys are remembered, the latest; a key counts once
// each time it is lost.
#pragma once

#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"

namespace kvartal::policy {

class GhostList {
 public:
  // Forgets the oldest where the new bounds are smaller.
  void SetBounds(uint64_t bytes_max, uint64_t keys_max);
  // `key` is a fingerprint: two keys that share one only blur the count.
  void Add(uint64_t key, uint32_t bytes);
  // A block was asked for and is not there. True when it was remembered.
  bool Miss(uint64_t key);
  bool empty() const { return remembered_.empty(); }

  // Bytes of blocks that were wanted after they were lost, fading.
  uint64_t missed_bytes() const { return missed_bytes_; }
  // Called once a second: what was missed counts for about a minute.
  void Fade();

 private:
  struct Lost {
    uint64_t key;
    uint64_t serial;  // of the Add: the same key may have been lost, wanted and lost again
  };
  struct Remembered {
    uint64_t serial;
    uint32_t bytes;
  };
  void ForgetOldest();
  void Trim();

  uint64_t bytes_max_ = 0, keys_max_ = 0;
  uint64_t bytes_ = 0;
  uint64_t last_serial_ = 0;
  uint64_t missed_bytes_ = 0;
  std::deque<Lost> order_;  // oldest first; some of it is remembered no longer
  absl::flat_hash_map<uint64_t, Remembered> remembered_;
};

}  // namespace kvartal::policy
