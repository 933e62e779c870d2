// block_key, model_layout, block_state, tier_kind.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/block/block_key.h"
#include "daemon/block/block_state.h"
#include "daemon/block/model_layout.h"
#include "daemon/block/tier_kind.h"

namespace kvartal {
namespace {

ModelLayout Layout(uint32_t tokens, uint32_t shards, uint32_t shard_bytes) {
  ModelLayout layout;
  layout.tokens_per_block = tokens;
  layout.shard_count = shards;
  layout.shard_bytes = shard_bytes;
  return layout;
}

TEST(BlockKeyTest, KeysAreComparedWhole) {
  BlockKey a;
  BlockKey b;
  EXPECT_EQ(a, b);
  b.bytes[31] = 1;  // past what Prefix64 sees
  EXPECT_EQ(a.Prefix64(), b.Prefix64());
  EXPECT_NE(a, b);
}

TEST(BlockKeyTest, HexShowsAsManyBytesAsAsked) {
  BlockKey key;
  key.bytes[0] = 0xab;
  key.bytes[1] = 0x01;
  EXPECT_EQ(KeyToHex(key, 2), "ab01");
  EXPECT_EQ(KeyToHex(key).size(), 64u);
  EXPECT_EQ(KeyToHex(key, 1000).size(), 64u);
}

TEST(ModelLayoutTest, ShardsArePaddedToPagesAndLieOneAfterAnother) {
  const ModelLayout layout = Layout(16, 4, 5000);
  EXPECT_EQ(layout.ShardStrideBytes(), 8192u);
  EXPECT_EQ(layout.SlotBytes(), 4 * 8192u);
  for (uint32_t shard = 0; shard < 4; ++shard) EXPECT_EQ(layout.ShardOffset(shard), shard * 8192u);
  EXPECT_EQ(layout.ShardOffset(3) + layout.ShardStrideBytes(), layout.SlotBytes());
}

TEST(ModelLayoutTest, WholePagesGetNoPadding) { EXPECT_EQ(Layout(16, 1, 448 * kKiB).SlotBytes(), 448 * kKiB); }

TEST(ModelLayoutTest, BoundsAreExact) {
  EXPECT_TRUE(ValidateLayout(Layout(1, 1, 1)).ok());
  EXPECT_TRUE(ValidateLayout(Layout(64, 1, kBlockBytesMax)).ok());
  EXPECT_FALSE(ValidateLayout(Layout(64, 1, kBlockBytesMax + 1)).ok());
  EXPECT_TRUE(ValidateLayout(Layout(64, kShardsMax, kBlockBytesMax / kShardsMax)).ok());
  EXPECT_FALSE(ValidateLayout(Layout(64, kShardsMax, kBlockBytesMax / kShardsMax + 1)).ok()) << "padding counts";
  EXPECT_FALSE(ValidateLayout(Layout(0, 1, 4096)).ok());
  EXPECT_FALSE(ValidateLayout(Layout(16, 0, 4096)).ok());
  EXPECT_FALSE(ValidateLayout(Layout(16, kShardsMax + 1, 4096)).ok());
  EXPECT_FALSE(ValidateLayout(Layout(16, 1, 0)).ok());
}

TEST(ModelLayoutTest, LayoutsWhoseProductOverflows32BitsAreRefused) {
  EXPECT_FALSE(ValidateLayout(Layout(16, kShardsMax, 0xffffffffu)).ok());
  EXPECT_FALSE(ValidateLayout(Layout(16, 2, 0x80000000u)).ok());
}

TEST(ModelLayoutTest, ARefusalNamesTheFieldAndItsBound) {
  const std::string message(ValidateLayout(Layout(16, 65, 4096)).message());
  EXPECT_NE(message.find("shard_count is 65"), std::string::npos) << message;
  EXPECT_NE(message.find("64"), std::string::npos) << message;
}

constexpr BlockState kAllStates[] = {BlockState::kGone, BlockState::kReserved, BlockState::kFilling,
                                     BlockState::kCommitted};

// Gone -> Committed is recovery, Reserved -> Committed an abort beside a copy on NVMe: bytes that were committed once.
TEST(BlockStateTest, TheTableIsExactlyThis) {
  using enum BlockState;
  const std::set<std::pair<BlockState, BlockState>> legal = {
      {kGone, kReserved},      {kGone, kCommitted},    {kReserved, kFilling},
      {kReserved, kGone},      {kFilling, kCommitted}, {kFilling, kGone},
      {kCommitted, kReserved}, {kCommitted, kGone},    {kReserved, kCommitted},
  };
  for (BlockState from : kAllStates) {
    for (BlockState to : kAllStates) {
      EXPECT_EQ(MayBecome(from, to), legal.contains({from, to}))
          << static_cast<int>(from) << " -> " << static_cast<int>(to);
    }
  }
}

TEST(NamesTest, EveryTierHasItsOwnName) {
  std::set<std::string> tiers;
  for (TierKind tier : kAllTiers) tiers.insert(TierName(tier));
  EXPECT_EQ(tiers, (std::set<std::string>{"hbm", "dram", "nvme"}));
}

}  // namespace
}  // namespace kvartal
