// Blocks that have left the cache, remembered for a while by a fingerprint of their key, so that one that returns is
// known again. Two generations: a full one makes the one before it be forgotten, which bounds memory without choosing.
// Confined to the engine loop.
// Invariant: holds at most twice the generation's size, which follows the number of blocks in the cache and is no more
// than a tenant's part of what a node remembers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "daemon/policy/reuse_classes.h"

namespace kvartal::policy {

class GhostMemory {
 public:
  // `cached`: blocks of the tenant that are still there. `tenants`: on the node, each with a memory like this.
  void Remember(uint64_t fingerprint, const PastUse& past, uint64_t cached, uint64_t tenants);
  // What is remembered, and forgotten by that. `frequency` 0: nothing.
  PastUse Recall(uint64_t fingerprint);
  size_t size() const { return young_.size() + old_.size(); }

 private:
  using Generation = absl::flat_hash_map<uint64_t, PastUse>;
  Generation young_;
  Generation old_;
};

}  // namespace kvartal::policy
