#include "daemon/tier/address_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "daemon/tier/dram_extent.h"

namespace kvartal::tier {
namespace {

TEST(AddressRangesTest, TheLowestRangeThatFitsIsTaken) {
  AddressRanges free(100);
  EXPECT_EQ(free.Take(10), (AddressRange{0, 10}));
  EXPECT_EQ(free.Take(20), (AddressRange{10, 20}));
  EXPECT_EQ(free.Take(5), (AddressRange{30, 5}));
  free.Give({0, 10});
  EXPECT_EQ(free.Take(11), (AddressRange{35, 11})) << "the hole of 10 is too small";
  EXPECT_EQ(free.Take(10), (AddressRange{0, 10}));
  EXPECT_EQ(free.free_bytes(), 54u);
  EXPECT_FALSE(free.Take(55).has_value());
}

TEST(AddressRangesTest, NeighboursMergeOnBothSides) {
  AddressRanges free(30);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(free.Take(10).has_value());
  EXPECT_EQ(free.range_count(), 0u);
  free.Give({0, 10});
  free.Give({20, 10});
  EXPECT_EQ(free.range_count(), 2u);
  free.Give({10, 10});
  EXPECT_EQ(free.range_count(), 1u);
  EXPECT_EQ(free.Take(30), (AddressRange{0, 30}));
}

TEST(AddressRangesTest, TakeFromBeginsInsideARangeAndStopsAtItsEnd) {
  AddressRanges free(100);
  EXPECT_EQ(free.TakeFrom(40, 10), (AddressRange{40, 10}));
  EXPECT_EQ(free.range_count(), 2u);
  EXPECT_EQ(free.TakeFrom(45, 1000), (AddressRange{50, 50})) << "the first free address after a taken one";
  EXPECT_FALSE(free.TakeFrom(40, 10).has_value());
  EXPECT_EQ(free.TakeFrom(0, 1000), (AddressRange{0, 40}));
}

TEST(AddressRangesTest, GivingWhatIsFreeEndsTheProcess) {
  AddressRanges free(100);
  ASSERT_TRUE(free.Take(50).has_value());
  EXPECT_DEATH(free.Give({40, 20}), "check failed");
  EXPECT_DEATH(free.Give({60, 10}), "check failed");
  EXPECT_DEATH(free.Give({90, 20}), "check failed");
}

TEST(DramExtentTest, TheLowestFreeSlotIsTakenWhateverWasGiven) {
  // Enough slots for two levels of words, and a tail that no slot fits in.
  DramExtent extent({1 << 20, 10'000 * 4096 + 4095}, 4096);
  ASSERT_EQ(extent.slot_count(), 10'000u);
  std::vector<bool> taken(10'000, false);
  std::mt19937_64 random(7);
  uint32_t used = 0;
  for (int step = 0; step < 60'000; ++step) {
    const bool take = used == 0 || (used < 10'000 && random() % 5 < 3);
    if (take) {
      const uint64_t slot = (extent.Take() - (1 << 20)) / 4096;
      ASSERT_FALSE(taken[slot]);
      if (step % 64 == 0) {
        for (uint64_t below = 0; below < slot; ++below) ASSERT_TRUE(taken[below]) << below << " was free";
      }
      taken[slot] = true;
      ++used;
    } else {
      uint64_t slot = random() % 10'000;
      while (!taken[slot]) slot = (slot + 1) % 10'000;
      extent.Give((1 << 20) + slot * 4096);
      taken[slot] = false;
      --used;
    }
    ASSERT_EQ(extent.free_count(), 10'000 - used);
    ASSERT_EQ(extent.empty(), used == 0);
  }
}

}  // namespace
}  // namespace kvartal::tier
