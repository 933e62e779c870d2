// What one block of a namespace looks like: how many tokens, how many shards, how many bytes a shard.
// Immutable once a namespace is open: a second engine that names another layout for the same digest is refused.
#pragma once

#include <cstdint>

#include "daemon/base/limits.h"
#include "daemon/base/status.h"
#include "daemon/base/units.h"

namespace kvartal {

inline constexpr uint64_t kAllShards = ~uint64_t{0};  // in a mask: bit i for shard i

struct ModelLayout {
  uint32_t tokens_per_block = 0;
  uint32_t shard_count = 1;  // node-local TP x PP ranks; 1 for MLA
  uint32_t shard_bytes = 0;  // bytes of one shard as the client writes them

  friend bool operator==(const ModelLayout&, const ModelLayout&) = default;

  // Shards lie one after another in a block's slot, each padded to kSlotAlignBytes (decision 0002).
  uint32_t ShardStrideBytes() const { return static_cast<uint32_t>(RoundUp(shard_bytes, kSlotAlignBytes)); }
  uint32_t SlotBytes() const { return ShardStrideBytes() * shard_count; }
  uint32_t ShardOffset(uint32_t shard) const { return ShardStrideBytes() * shard; }
};

// InvalidArgument with the field and its bounds when the layout cannot be stored.
absl::Status ValidateLayout(const ModelLayout& layout);

}  // namespace kvartal
