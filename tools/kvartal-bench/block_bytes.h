// The bytes of a benchmark block, derived from its key: anyone who knows the key can tell whether a block is right.
// Stateless; any thread.
// Invariants: every word of a block depends on the key and on its position, and verification compares every byte, so a
// single flipped bit, a block of another key and a block shifted by a word are all seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "daemon/block/block_key.h"
#include "daemon/block/namespace_digest.h"

namespace kvartal::bench {

// 32 bytes that no other (domain, id) shares: `domain` names a trace or a benchmark, `id` a block of it.
BlockKey MakeKey(std::string_view domain, uint64_t id);
NamespaceDigest MakeDigest(std::string_view name);

void FillBlock(const BlockKey& key, std::span<std::byte> out);
// Bytes that are not what FillBlock would have written; 0 is right.
uint64_t WrongBytes(const BlockKey& key, std::span<const std::byte> in);

}  // namespace kvartal::bench
