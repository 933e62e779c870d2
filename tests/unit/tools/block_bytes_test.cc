#include "tools/kvartal-bench/block_bytes.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace kvartal::bench {
namespace {

constexpr size_t kOddSize = 4096 + 5;  // a tail that is no whole word

std::vector<std::byte> Filled(const BlockKey& key, size_t bytes) {
  std::vector<std::byte> block(bytes);
  FillBlock(key, block);
  return block;
}

TEST(BlockBytes, WhatWasFilledIsRight) {
  const BlockKey key = MakeKey("trace", 7);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{4096}, kOddSize}) {
    EXPECT_EQ(WrongBytes(key, Filled(key, bytes)), 0u) << bytes;
  }
}

TEST(BlockBytes, AnySingleFlippedBitIsOneWrongByte) {
  const BlockKey key = MakeKey("trace", 7);
  std::vector<std::byte> block = Filled(key, kOddSize);
  for (size_t i = 0; i < block.size(); ++i) {
    const std::byte bit{static_cast<uint8_t>(1u << (i % 8))};
    block[i] ^= bit;
    EXPECT_EQ(WrongBytes(key, block), 1u) << "byte " << i;
    block[i] ^= bit;
  }
}

TEST(BlockBytes, AnotherKeysBlockIsWrongInEveryWord) {
  const std::vector<std::byte> block = Filled(MakeKey("trace", 7), 4096);
  EXPECT_GT(WrongBytes(MakeKey("trace", 8), block), 4096u * 9 / 10);
  EXPECT_GT(WrongBytes(MakeKey("other", 7), block), 4096u * 9 / 10);
}

TEST(BlockBytes, ABlockShiftedByAWordIsWrong) {
  const BlockKey key = MakeKey("trace", 7);
  const std::vector<std::byte> block = Filled(key, 4096 + 8);
  EXPECT_GT(WrongBytes(key, std::span(block).subspan(8)), 0u);
}

TEST(BlockBytes, KeysDifferByDomainAndIdAndAreTheSameEveryTime) {
  std::set<std::array<uint8_t, kBlockKeyBytes>> seen;
  for (uint64_t id = 0; id < 1000; ++id) {
    seen.insert(MakeKey("a", id).bytes);
    seen.insert(MakeKey("b", id).bytes);
  }
  EXPECT_EQ(seen.size(), 2000u);
  EXPECT_EQ(MakeKey("a", 3), MakeKey("a", 3));
}

}  // namespace
}  // namespace kvartal::bench
