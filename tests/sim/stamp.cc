#include "tests/sim/stamp.h"

#include <algorithm>
#include <cstring>

#include "daemon/base/limits.h"

namespace kvartal::sim {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);

uint64_t Word(uint32_t nonce, uint32_t shard, uint64_t page) {
  return uint64_t{nonce} << 32 | uint64_t{shard} << 24 | page;
}

}  // namespace

void WriteStamp(std::span<std::byte> bytes, uint32_t nonce, uint32_t shard) {
  for (uint64_t at = 0; at < bytes.size(); at += kSlotAlignBytes) {
    const uint64_t words = std::min<uint64_t>(bytes.size() - at, kSlotAlignBytes) / kWordBytes;
    std::fill_n(reinterpret_cast<uint64_t*>(bytes.data() + at), words, Word(nonce, shard, at / kSlotAlignBytes));
  }
}

uint32_t NonceAt(const std::byte* block) {
  uint64_t word;
  std::memcpy(&word, block, sizeof(word));
  return (word & 0xffffffff) == 0 ? static_cast<uint32_t>(word >> 32) : 0;
}

bool IsWhole(const std::byte* block, const ModelLayout& layout, uint32_t nonce) {
  uint64_t differs = 0;
  for (uint32_t shard = 0; shard < layout.shard_count; ++shard) {
    const std::byte* const bytes = block + layout.ShardOffset(shard);
    for (uint64_t at = 0; at < layout.shard_bytes; at += kSlotAlignBytes) {
      const uint64_t count = std::min<uint64_t>(layout.shard_bytes - at, kSlotAlignBytes) / kWordBytes;
      const auto* words = reinterpret_cast<const uint64_t*>(bytes + at);
      const uint64_t wanted = Word(nonce, shard, at / kSlotAlignBytes);
      for (uint64_t i = 0; i < count; ++i) differs |= words[i] ^ wanted;
    }
  }
  return differs == 0;
}

}  // namespace kvartal::sim
