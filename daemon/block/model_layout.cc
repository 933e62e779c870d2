#include "daemon/block/model_layout.h"

#include "absl/strings/str_cat.h"

namespace kvartal {

absl::Status ValidateLayout(const ModelLayout& layout) {
  if (layout.tokens_per_block == 0) return absl::InvalidArgumentError("tokens_per_block is 0; it must be at least 1");
  if (layout.shard_count == 0 || layout.shard_count > kShardsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard_count is ", layout.shard_count, "; allowed: 1 to ", kShardsMax, " ranks on this node"));
  }
  const uint64_t block_bytes = RoundUp(layout.shard_bytes, kSlotAlignBytes) * layout.shard_count;
  if (layout.shard_bytes == 0 || block_bytes > kBlockBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("shard_bytes is ", layout.shard_bytes, ", so a block takes ",
                                                   block_bytes, " bytes; allowed: 1 to ", kBlockBytesMax,
                                                   " bytes a block"));
  }
  return absl::OkStatus();
}

}  // namespace kvartal
