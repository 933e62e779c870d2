// The bytes of a block in a simulation: every word says whose they are, so that one that is not as written is seen.
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/block/model_layout.h"

namespace kvartal::sim {

void WriteStamp(std::span<std::byte> shard_bytes, uint32_t nonce, uint32_t shard);
// What the first word of a block says; 0 for bytes that no stamp begins with.
uint32_t NonceAt(const std::byte* block);
// Every byte of every shard is as WriteStamp left it.
bool IsWhole(const std::byte* block, const ModelLayout& layout, uint32_t nonce);

}  // namespace kvartal::sim
