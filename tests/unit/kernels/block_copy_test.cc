#include "kernels/block_copy.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace kvartal::kernels {
namespace {

constexpr PageShape kShape{3, 2, 4, 16};
constexpr uint32_t kBlocks = 5;

class BlockCopyTest : public ::testing::TestWithParam<PageOrder> {
 protected:
  const PageStrides strides_ = StridesOf(kShape, GetParam(), kBlocks);
  std::vector<std::byte> pool_ = std::vector<std::byte>(kShape.BlockBytes() * kBlocks);
};

TEST_P(BlockCopyTest, EveryByteOfThePoolHasOnePlace) {
  std::set<size_t> places;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    for (uint32_t layer = 0; layer < kShape.layers; ++layer) {
      for (uint32_t head = 0; head < kShape.heads; ++head) {
        for (uint32_t token = 0; token < kShape.tokens; ++token) {
          places.insert(block * strides_.block + layer * strides_.layer + head * strides_.head +
                        token * strides_.token);
        }
      }
    }
  }
  EXPECT_EQ(places.size(), pool_.size() / kShape.content_bytes);
  EXPECT_EQ(*places.rbegin(), pool_.size() - kShape.content_bytes);
}

TEST_P(BlockCopyTest, ASlotIsLayerHeadTokenWhateverThePoolIs) {
  const uint32_t block = 3;
  for (uint32_t layer = 0; layer < kShape.layers; ++layer) {
    for (uint32_t head = 0; head < kShape.heads; ++head) {
      for (uint32_t token = 0; token < kShape.tokens; ++token) {
        pool_[block * strides_.block + layer * strides_.layer + head * strides_.head + token * strides_.token] =
            std::byte(layer * 100 + head * 10 + token);
      }
    }
  }
  std::vector<std::byte> slot(kShape.BlockBytes());
  GatherBlock(pool_.data(), kShape, strides_, block, slot.data());
  size_t at = 0;
  for (uint32_t layer = 0; layer < kShape.layers; ++layer) {
    for (uint32_t head = 0; head < kShape.heads; ++head) {
      for (uint32_t token = 0; token < kShape.tokens; ++token, at += kShape.content_bytes) {
        ASSERT_EQ(slot[at], std::byte(layer * 100 + head * 10 + token)) << layer << " " << head << " " << token;
      }
    }
  }
}

TEST_P(BlockCopyTest, ScatterPutsItBackAndTouchesNoOtherBlock) {
  std::vector<std::byte> slot(kShape.BlockBytes());
  for (size_t i = 0; i < slot.size(); ++i) slot[i] = std::byte(1 + i % 251);
  ScatterBlock(slot.data(), kShape, strides_, 2, pool_.data());
  std::vector<std::byte> again(slot.size());
  for (uint32_t block = 0; block < kBlocks; ++block) {
    GatherBlock(pool_.data(), kShape, strides_, block, again.data());
    EXPECT_EQ(again, block == 2 ? slot : std::vector<std::byte>(slot.size())) << block;
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, BlockCopyTest, ::testing::ValuesIn(kPageOrders));

}  // namespace
}  // namespace kvartal::kernels
