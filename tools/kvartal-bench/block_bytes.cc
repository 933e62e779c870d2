#include "tools/kvartal-bench/block_bytes.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace kvartal::bench {
namespace {

// Word i is start + i * step: adds alone, so filling runs at memory speed. Two keys agree in at most one word of a
// block, since both numbers come from a 128-bit hash of the whole key.
struct Progression {
  uint64_t start;
  uint64_t step;
};

Progression ProgressionOf(const BlockKey& key) {
  const XXH128_hash_t hash = XXH3_128bits(key.bytes.data(), key.bytes.size());
  return {hash.low64, hash.high64 | 1};
}

constexpr size_t kChunkWords = 512;

uint64_t DifferingBytes(const std::byte* a, const std::byte* b, size_t bytes) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes; ++i) wrong += a[i] != b[i];
  return wrong;
}

}  // namespace

BlockKey MakeKey(std::string_view domain, uint64_t id) {
  BlockKey key;
  const uint64_t seed = XXH3_64bits(domain.data(), domain.size());
  for (uint64_t half = 0; half < 2; ++half) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(&id, sizeof(id), seed + half);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    static_assert(sizeof(canonical) * 2 == kBlockKeyBytes);
    std::memcpy(key.bytes.data() + half * sizeof(canonical), &canonical, sizeof(canonical));
  }
  return key;
}

NamespaceDigest MakeDigest(std::string_view name) {
  NamespaceDigest digest;
  const BlockKey key = MakeKey(name, UINT64_MAX);
  static_assert(kBlockKeyBytes == kNamespaceDigestBytes);
  std::memcpy(digest.bytes.data(), key.bytes.data(), digest.bytes.size());
  return digest;
}

void FillBlock(const BlockKey& key, std::span<std::byte> out) {
  const auto [start, step] = ProgressionOf(key);
  const size_t words = out.size() / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = start + i * step;
    std::memcpy(out.data() + i * sizeof(word), &word, sizeof(word));
  }
  const uint64_t tail = start + words * step;
  const size_t tail_bytes = out.size() - words * sizeof(tail);
  if (tail_bytes > 0) std::memcpy(out.data() + words * sizeof(tail), &tail, tail_bytes);
}

uint64_t WrongBytes(const BlockKey& key, std::span<const std::byte> in) {
  const auto [start, step] = ProgressionOf(key);
  const size_t words = in.size() / sizeof(uint64_t);
  uint64_t wrong = 0;
  for (size_t first = 0; first < words; first += kChunkWords) {
    const size_t end = std::min(words, first + kChunkWords);
    uint64_t differs = 0;
    for (size_t i = first; i < end; ++i) {
      uint64_t word;
      std::memcpy(&word, in.data() + i * sizeof(word), sizeof(word));
      differs |= word ^ (start + i * step);
    }
    if (differs == 0) continue;
    for (size_t i = first; i < end; ++i) {
      const uint64_t word = start + i * step;
      wrong += DifferingBytes(in.data() + i * sizeof(word), reinterpret_cast<const std::byte*>(&word), sizeof(word));
    }
  }
  const uint64_t tail = start + words * step;
  const size_t done = words * sizeof(tail);
  return wrong + DifferingBytes(in.data() + done, reinterpret_cast<const std::byte*>(&tail), in.size() - done);
}

}  // namespace kvartal::bench
