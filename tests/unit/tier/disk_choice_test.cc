#include "daemon/tier/disk_choice.h"

#include <gtest/gtest.h>

#include <vector>

#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "daemon/tier/disk_map.h"

namespace kvartal::tier {
namespace {

DiskLoad Load(uint64_t queued_bytes, uint64_t free_bytes, uint64_t capacity_bytes = 64 * kGiB, bool takes = true) {
  return {takes, queued_bytes, free_bytes, capacity_bytes};
}

TEST(DiskChoiceTest, ARunStaysWithItsParentUntilItIsLongEnoughHoweverBusyTheDiskIs) {
  const std::vector<DiskLoad> disks = {Load(0, 60 * kGiB), Load(kGiB, kGiB)};
  EXPECT_EQ(ChooseDisk(disks, ChainRun{1, kDiskRunBytes - 1}), 1u);
  EXPECT_EQ(ChooseDisk(disks, ChainRun{1, kDiskRunBytes}), 0u);
}

TEST(DiskChoiceTest, ALongChainGoesOnAtAnotherDiskEvenWhereItsOwnIsTheBest) {
  const std::vector<DiskLoad> disks = {Load(0, 60 * kGiB), Load(64 * kMiB, kGiB), Load(96 * kMiB, kGiB)};
  EXPECT_EQ(ChooseDisk(disks, ChainRun{0, kDiskRunBytes}), 1u);
  const std::vector<DiskLoad> alone = {Load(0, kGiB), Load(0, kGiB, 64 * kGiB, false)};
  EXPECT_EQ(ChooseDisk(alone, ChainRun{0, kDiskRunBytes}), 0u) << "no other takes it";
}

TEST(DiskChoiceTest, AChainThatBeginsGoesToTheShorterQueueAndAmongEqualsToTheEmptierDisk) {
  EXPECT_EQ(ChooseDisk(std::vector{Load(64 * kMiB, 60 * kGiB), Load(0, kGiB)}, std::nullopt), 1u);
  EXPECT_EQ(ChooseDisk(std::vector{Load(kDiskUnderWayBytes - 1, kGiB), Load(0, 60 * kGiB)}, std::nullopt), 1u);
  EXPECT_EQ(ChooseDisk(std::vector{Load(kDiskUnderWayBytes - 1, 60 * kGiB), Load(0, kGiB)}, std::nullopt), 0u)
      << "what a disk has under way anyway is no queue";
  EXPECT_EQ(ChooseDisk(std::vector{Load(0, 10 * kGiB, 16 * kGiB), Load(0, 20 * kGiB, 64 * kGiB)}, std::nullopt), 0u)
      << "the part that is free counts, so that a small one is full no earlier than a large one";
  EXPECT_EQ(ChooseDisk(std::vector{Load(0, kGiB), Load(0, kGiB)}, std::nullopt), 0u) << "always the same answer";
}

TEST(DiskChoiceTest, WhatTakesNoBlocksIsNeverChosen) {
  const std::vector<DiskLoad> disks = {Load(0, 60 * kGiB, 64 * kGiB, false), Load(kGiB, 1)};
  EXPECT_EQ(ChooseDisk(disks, std::nullopt), 1u);
  EXPECT_EQ(ChooseDisk(disks, ChainRun{0, 1}), 1u);
  EXPECT_EQ(ChooseDisk(std::vector{disks[0]}, ChainRun{0, 1}), std::nullopt);
}

TEST(DiskMapTest, EverySlotIsOnOneDiskAndNoneBeyondItsEnd) {
  const DiskMap map({10 * kSlotAlignBytes, 20 * kSlotAlignBytes + 1, 5 * kSlotAlignBytes});
  for (uint32_t slot = 0; slot < 35; ++slot) {
    const std::optional<DiskMap::Place> place = map.Find(SlotId(slot));
    ASSERT_TRUE(place.has_value()) << slot;
    EXPECT_EQ(place->disk, slot < 10 ? 0u : slot < 30 ? 1u : 2u);
    EXPECT_EQ(map.SlotAt(place->disk, place->slot), SlotId(slot));
  }
  EXPECT_FALSE(map.Find(SlotId(35)).has_value());
  EXPECT_FALSE(map.Find(SlotId::None()).has_value());
  EXPECT_FALSE(map.SlotAt(0, SlotId(10)).has_value()) << "it would be the first of the next disk";
  EXPECT_FALSE(map.SlotAt(2, SlotId(5)).has_value());
}

TEST(DiskMapTest, OneDiskHasItsOwnNumbers) {
  const DiskMap map({kNvmeBytesMax});
  EXPECT_EQ(map.SlotAt(0, SlotId(0xffff'fffe)), SlotId(0xffff'fffe));
  EXPECT_EQ(map.Find(SlotId(256))->slot, SlotId(256));
}

}  // namespace
}  // namespace kvartal::tier
