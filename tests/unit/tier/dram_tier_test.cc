#include "daemon/tier/dram_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "tests/support/fake_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {
namespace {

using ::kvartal::testing::FakeMemory;
using ::kvartal::testing::ManualExecutor;

constexpr DomainId kA{0};
constexpr DomainId kB{3};  // domain ids need not be dense
constexpr uint32_t kSlot = 448 * kKiB;

class DramTierTest : public ::testing::Test {
 protected:
  DramTierTest() { Remake(256 * kMiB); }

  void Remake(uint64_t capacity_bytes) {
    tier_ = std::make_unique<DramTier>(&memory_, capacity_bytes);
    KV_CHECK(tier_->OpenDomain(kA).ok() && tier_->OpenDomain(kB).ok());
  }

  // Grows by what the tier proposes and pumps until it is done.
  absl::Status Grow(DomainId domain, uint32_t slot_bytes, uint64_t at_most = kTiB) {
    std::optional<absl::Status> result;
    const uint64_t growth = tier_->GrowthBytes(slot_bytes, at_most);
    KV_CHECK(growth > 0);
    tier_->Grow(domain, slot_bytes, growth, [&](absl::Status status) { result = std::move(status); });
    executor_.RunAll();
    KV_CHECK(result.has_value());
    return *result;
  }

  ManualExecutor executor_;
  FakeMemory memory_{&executor_};
  std::unique_ptr<DramTier> tier_;
};

// ---- domains

TEST_F(DramTierTest, ADomainClosesWhenItHasNothingAndOpensAnew) {
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  const SlotId slot = tier_->Take(kA, kSlot);
  EXPECT_FALSE(tier_->CloseDomain(kA));
  tier_->Give(kA, slot);
  EXPECT_FALSE(tier_->CloseDomain(kA)) << "an empty extent is memory, too";
  tier_->Shrink(kA, 0, [] {});
  EXPECT_FALSE(tier_->CloseDomain(kA)) << "being punched";
  executor_.RunAll();
  EXPECT_TRUE(tier_->CloseDomain(kA));
  EXPECT_EQ(tier_->arena(kA), nullptr);
  EXPECT_TRUE(tier_->CloseDomain(kA)) << "it is";
  EXPECT_TRUE(tier_->CloseDomain(DomainId(77))) << "nobody had it";
  EXPECT_NE(tier_->arena(kB), nullptr);
  ASSERT_TRUE(tier_->OpenDomain(kA).ok());
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  EXPECT_TRUE(tier_->Take(kA, kSlot).valid());
}

TEST_F(DramTierTest, ADomainWithARequestUnderWayDoesNotClose) {
  tier_->Grow(kA, kSlot, tier_->GrowthBytes(kSlot, kTiB), [](const absl::Status&) {});
  EXPECT_FALSE(tier_->CloseDomain(kA)) << "being populated";
  executor_.RunAll();
  tier_->Shrink(kA, 0, [] {});
  ::unsetenv("KVARTAL_BUGS_FATAL");  // a punch that fails is one
  memory_.FailNextPunches(1);
  executor_.RunAll();
  EXPECT_FALSE(tier_->CloseDomain(kA)) << "the punch is still owed";
  tier_->PunchStrayPages();
  executor_.RunAll();
  EXPECT_TRUE(tier_->CloseDomain(kA));
}

TEST_F(DramTierTest, AReaderWithoutALeaseDoesNotTakeZerosForABlock) {
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  const SlotId slot = tier_->Take(kA, kSlot);
  const uint32_t before = tier_->GenerationOf(kA, slot);
  bool zeroed = false;
  ASSERT_TRUE(tier_->Zero(kA, slot, [&] { zeroed = true; }));
  EXPECT_NE(tier_->GenerationOf(kA, slot), before) << "raised before the first byte changes";
  executor_.RunAll();
  EXPECT_TRUE(zeroed);
}

// ---- sizes

TEST(ExtentBytesTest, EveryUsualSlotSizeWastesLittle) {
  for (uint64_t slot = 4 * kKiB; slot <= 32 * kMiB; slot *= 2) {
    for (const uint64_t want : {2 * kMiB, 8 * kMiB, 16 * kMiB}) {
      const uint64_t bytes = ExtentBytesFor(static_cast<uint32_t>(slot), want);
      EXPECT_EQ(bytes % slot, 0u) << slot;
      EXPECT_GE(bytes, std::max(slot, want));
      EXPECT_LE(bytes, kExtentMaxBytes);
    }
  }
  for (const uint32_t slot : {448 * kKiB, 2560 * kKiB, 12 * kKiB, 20 * kKiB, 1152 * kKiB, 9 * kMiB, 24 * kMiB}) {
    const uint64_t bytes = ExtentBytesFor(slot, 16 * kMiB);
    EXPECT_EQ(bytes % kExtentAlignBytes, 0u);
    EXPECT_LT((bytes % slot) * 100, bytes * kExtentWastePercentMax) << slot << " in " << bytes;
  }
}

TEST(ExtentBytesTest, AnySlotSizeWastesLittleOrAsLittleAsAnExtentCan) {
  for (uint64_t slot = 4 * kKiB; slot <= 32 * kMiB; slot += 4 * kKiB) {
    const uint64_t bytes = ExtentBytesFor(static_cast<uint32_t>(slot), 16 * kMiB);
    ASSERT_EQ(bytes % kExtentAlignBytes, 0u);
    ASSERT_GE(bytes, slot);
    ASSERT_LE(bytes, kExtentMaxBytes);
    if ((bytes % slot) * 100 < bytes * kExtentWastePercentMax) continue;
    for (uint64_t other = RoundUp(slot, kExtentAlignBytes); other <= kExtentMaxBytes; other += kExtentAlignBytes) {
      ASSERT_GE((other % slot) * bytes, (bytes % slot) * other)
          << slot << ": " << other << " wastes less than " << bytes;
    }
  }
}

TEST_F(DramTierTest, GrowthFitsWhatCanBeCharged) {
  EXPECT_EQ(tier_->GrowthBytes(4 * kKiB, kTiB), 2 * kMiB);
  EXPECT_GE(tier_->GrowthBytes(kSlot, kTiB), 16 * kMiB);
  EXPECT_EQ(tier_->GrowthBytes(32 * kMiB, kTiB), 32 * kMiB);
  for (const uint32_t slot : {uint32_t{1}, uint32_t{4096}, kSlot, uint32_t{2560 * kKiB}, uint32_t{32 * kMiB}}) {
    for (uint64_t at_most = 0; at_most <= 40 * kMiB; at_most += kMiB) {
      const uint64_t growth = tier_->GrowthBytes(slot, at_most);
      EXPECT_LE(growth, at_most);
      EXPECT_EQ(growth > 0, at_most >= RoundUp(slot, kExtentAlignBytes)) << slot << " within " << at_most;
      EXPECT_TRUE(growth == 0 || growth >= slot);
    }
  }
  EXPECT_EQ(tier_->GrowthBytes(0, kTiB), 0u);
  EXPECT_EQ(tier_->GrowthBytes(32 * kMiB + 1, kTiB), 0u) << "no block is that large";
}

// ---- slots

TEST_F(DramTierTest, TakeNeverGrowsAndKeepsSlotSizesApart) {
  EXPECT_FALSE(tier_->Take(kA, kSlot).valid());
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  EXPECT_FALSE(tier_->Take(kA, 4 * kKiB).valid());
  EXPECT_FALSE(tier_->Take(kB, kSlot).valid()) << "another domain's memory";
  EXPECT_TRUE(tier_->Take(kA, kSlot).valid());
  EXPECT_TRUE(tier_->Take(kA, kSlot - 4095).valid()) << "the same slot size after padding";
}

TEST_F(DramTierTest, TakeFillsTheFullestExtentLowestSlotFirst) {
  ASSERT_TRUE(Grow(kA, kMiB).ok());
  const uint64_t per_extent = tier_->stats().granted_bytes / kMiB;
  ASSERT_TRUE(Grow(kA, kMiB).ok());
  std::vector<SlotId> slots;
  for (uint64_t i = 0; i < 2 * per_extent; ++i) {
    slots.push_back(tier_->Take(kA, kMiB));
    EXPECT_EQ(DramTier::OffsetOf(slots.back()), i * kMiB);
  }
  EXPECT_FALSE(tier_->Take(kA, kMiB).valid());
  // Two free in the first extent, one in the second: the second is the fuller.
  tier_->Give(kA, slots[1]);
  tier_->Give(kA, slots[5]);
  tier_->Give(kA, slots[per_extent + 3]);
  EXPECT_EQ(tier_->Take(kA, kMiB), slots[per_extent + 3]);
  EXPECT_EQ(tier_->Take(kA, kMiB), slots[1]);
  EXPECT_EQ(tier_->Take(kA, kMiB), slots[5]);
}

TEST_F(DramTierTest, GivingTwiceOrWhatWasNeverTakenEndsTheProcess) {
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  const SlotId slot = tier_->Take(kA, kSlot);
  tier_->Give(kA, slot);
  EXPECT_DEATH(tier_->Give(kA, slot), "check failed");
  const SlotId inside(tier_->Take(kA, kSlot).value() + 1);
  EXPECT_DEATH(tier_->Give(kA, inside), "check failed");
  EXPECT_DEATH(tier_->Give(kA, SlotId(0x7fffffff)), "check failed");
}

TEST_F(DramTierTest, GiveRaisesTheGenerationOfThatSlotAlone) {
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  const SlotId first = tier_->Take(kA, kSlot);
  const SlotId second = tier_->Take(kA, kSlot);
  const uint32_t first_before = tier_->GenerationOf(kA, first);
  const uint32_t second_before = tier_->GenerationOf(kA, second);
  tier_->Give(kA, first);
  EXPECT_GT(tier_->GenerationOf(kA, first), first_before);
  EXPECT_EQ(tier_->GenerationOf(kA, second), second_before);
  EXPECT_EQ(tier_->GenerationOf(kA, first), tier_->arena(kA)->generations()[first.value()].load());
}

TEST_F(DramTierTest, GenerationsDoNotStartAgainWhenMemoryComesBack) {
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  const SlotId slot = tier_->Take(kA, kSlot);
  tier_->Give(kA, slot);
  const uint32_t given = tier_->GenerationOf(kA, slot);
  tier_->Shrink(kA, 0, [] {});
  executor_.RunAll();
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  ASSERT_EQ(tier_->Take(kA, kSlot), slot);
  EXPECT_GE(tier_->GenerationOf(kA, slot), given);
}

TEST_F(DramTierTest, StatsAreExact) {
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  const uint64_t granted = tier_->stats().granted_bytes;
  EXPECT_EQ(granted, tier_->GrowthBytes(kSlot, kTiB));
  EXPECT_EQ(tier_->EmptyBytes(kA), granted);
  const SlotId slot = tier_->Take(kA, kSlot - 100);
  EXPECT_EQ(tier_->stats().used_bytes, kSlot);
  EXPECT_EQ(tier_->stats().slots_used, 1u);
  EXPECT_EQ(tier_->EmptyBytes(kA), 0u);
  tier_->Give(kA, slot);
  EXPECT_EQ(tier_->stats().used_bytes, 0u);
  EXPECT_EQ(tier_->EmptyBytes(kA), granted);
  EXPECT_EQ(tier_->EmptyBytes(kB), 0u);
}

// ---- growing and shrinking

TEST_F(DramTierTest, NothingCanBeTakenBeforeMemoryIsPresent) {
  memory_.Hold();
  bool done = false;
  tier_->Grow(kA, kSlot, tier_->GrowthBytes(kSlot, kTiB), [&](const absl::Status& status) { done = status.ok(); });
  executor_.RunAll();
  EXPECT_FALSE(done);
  EXPECT_FALSE(tier_->Take(kA, kSlot).valid());
  EXPECT_EQ(tier_->stats().granted_bytes, 0u);
  memory_.Release();
  executor_.RunAll();
  EXPECT_TRUE(done);
  EXPECT_TRUE(tier_->Take(kA, kSlot).valid());
}

TEST_F(DramTierTest, TheCapacityHoldsForMemoryOnItsWayToo) {
  Remake(32 * kMiB);
  memory_.Hold();
  int done = 0;
  tier_->Grow(kA, kMiB, 16 * kMiB, [&](const absl::Status&) { ++done; });
  tier_->Grow(kB, kMiB, 16 * kMiB, [&](const absl::Status&) { ++done; });
  absl::Status refused;
  tier_->Grow(kB, kMiB, 2 * kMiB, [&](absl::Status status) { refused = std::move(status); });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  memory_.Release();
  executor_.RunAll();
  EXPECT_EQ(done, 2);
  EXPECT_EQ(tier_->stats().granted_bytes, 32 * kMiB);
  // Bytes being punched are not free yet.
  memory_.Hold();
  EXPECT_EQ(tier_->Shrink(kA, 0, [] {}), 16 * kMiB);
  refused = absl::OkStatus();
  tier_->Grow(kB, kMiB, 2 * kMiB, [&](absl::Status status) { refused = std::move(status); });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  memory_.Release();
  executor_.RunAll();
  EXPECT_TRUE(Grow(kB, 4 * kKiB).ok());
}

TEST_F(DramTierTest, AFailedPopulateIsPunchedBeforeTheCallerRefunds) {
  memory_.FailNextPopulates(1);
  memory_.Hold();
  std::optional<absl::Status> result;
  tier_->Grow(kA, kSlot, tier_->GrowthBytes(kSlot, kTiB), [&](absl::Status status) {
    EXPECT_EQ(memory_.counts().punches, 1u);
    result = std::move(status);
  });
  memory_.Release();
  executor_.RunAll();
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*result));
  EXPECT_EQ(tier_->stats().granted_bytes, 0u);
  EXPECT_EQ(tier_->stats().reclaiming_bytes, 0u);
  EXPECT_FALSE(tier_->Take(kA, kSlot).valid());
  EXPECT_TRUE(Grow(kA, kSlot).ok());
}

TEST_F(DramTierTest, ABusyMemoryThreadRefusesGrowthAndDelaysPunches) {
  ASSERT_TRUE(Grow(kA, kMiB).ok());
  ASSERT_TRUE(Grow(kB, kMiB).ok());
  memory_.SetQueueMax(1);
  memory_.Hold();
  int ended = 0;
  const uint64_t bytes = tier_->Shrink(kA, 0, [&] { ++ended; });
  EXPECT_EQ(tier_->Shrink(kB, 0, [&] { ++ended; }), bytes);
  EXPECT_EQ(memory_.counts().pending, 1u);
  absl::Status refused;
  tier_->Grow(kA, kMiB, 16 * kMiB, [&](absl::Status status) { refused = std::move(status); });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  memory_.Release();
  executor_.RunAll();
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(tier_->stats().reclaiming_bytes, 0u);
  EXPECT_EQ(memory_.counts().punched_bytes, 2 * bytes);
  EXPECT_TRUE(Grow(kA, kMiB).ok());
}

TEST_F(DramTierTest, ShrinkTakesOnlyEmptyExtentsAndEndsWhenAllArePunched) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Grow(kA, kMiB).ok());
  const uint64_t extent = tier_->stats().granted_bytes / 3;
  const SlotId slot = tier_->Take(kA, kMiB);  // in the first extent
  int ended = 0;
  EXPECT_EQ(tier_->Shrink(kA, 0, [&] { ++ended; }), 2 * extent);
  EXPECT_EQ(tier_->stats().granted_bytes, extent);
  EXPECT_EQ(tier_->stats().reclaiming_bytes, 2 * extent);
  ASSERT_TRUE(executor_.RunOne());
  EXPECT_EQ(ended, 0) << "one of two ranges is still there";
  executor_.RunAll();
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(tier_->stats().reclaiming_bytes, 0u);
  EXPECT_EQ(tier_->arena(kA)->AllocatedBytes(), extent);
  tier_->Give(kA, slot);
}

TEST_F(DramTierTest, ShrinkKeepsWhatItIsToldTo) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Grow(kA, kMiB).ok());
  const uint64_t extent = tier_->stats().granted_bytes / 3;
  EXPECT_EQ(tier_->Shrink(kA, 2 * extent - 1, [] {}), 2 * extent);
  EXPECT_EQ(tier_->EmptyBytes(kA), extent);
  executor_.RunAll();
  bool ended = false;
  EXPECT_EQ(tier_->Shrink(kA, extent, [&] { ended = true; }), 0u);
  EXPECT_TRUE(ended);
  EXPECT_EQ(tier_->granted(kA).size(), 1u);
}

TEST_F(DramTierTest, BytesOfAPreviousOwnerAreGone) {
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  const SlotId slot = tier_->Take(kA, kSlot);
  std::byte* data = tier_->DataOf(kA, slot);
  data[100] = std::byte{1};
  tier_->Give(kA, slot);
  tier_->Shrink(kA, 0, [] {});
  executor_.RunAll();
  ASSERT_TRUE(Grow(kA, kSlot).ok());
  ASSERT_EQ(tier_->Take(kA, kSlot), slot);
  EXPECT_EQ(data[100], std::byte{0});
}

TEST_F(DramTierTest, APunchThatFailsKeepsItsRangeAndIsTriedAgain) {
  ::unsetenv("KVARTAL_BUGS_FATAL");
  ASSERT_TRUE(Grow(kA, kMiB).ok());
  const uint64_t bytes = tier_->stats().granted_bytes;
  const uint64_t bugs = BugCount();
  memory_.FailNextPunches(1);
  bool ended = false;
  tier_->Shrink(kA, 0, [&] { ended = true; });
  executor_.RunAll();
  EXPECT_EQ(BugCount(), bugs + 1);
  EXPECT_FALSE(ended);
  EXPECT_EQ(tier_->stats().reclaiming_bytes, bytes);
  ASSERT_TRUE(Grow(kA, kMiB).ok());
  EXPECT_GE(tier_->granted(kA).front().offset, bytes) << "the range that still holds old bytes was handed out";
  EXPECT_EQ(tier_->PunchStrayPages(), 0u);
  executor_.RunAll();
  EXPECT_TRUE(ended);
  EXPECT_EQ(tier_->stats().reclaiming_bytes, 0u);
}

TEST_F(DramTierTest, CallbacksThatComeAfterTheTierHasGoneDoNothing) {
  memory_.Hold();
  ASSERT_EQ(tier_->GrowthBytes(kMiB, kTiB), 16 * kMiB);
  bool done = false;
  tier_->Grow(kA, kMiB, 16 * kMiB, [&](const absl::Status&) { done = true; });
  tier_.reset();
  memory_.Release();
  executor_.RunAll();
  EXPECT_FALSE(done);
}

TEST_F(DramTierTest, ADomainIsOpenedOnceAndFailuresArePassedOn) {
  device::Arena* const arena = tier_->arena(kA);
  ASSERT_NE(arena, nullptr);
  EXPECT_EQ(tier_->arena(DomainId(1)), nullptr);
  EXPECT_EQ(tier_->arena(DomainId(99)), nullptr);
  EXPECT_TRUE(tier_->OpenDomain(kA).ok());
  EXPECT_EQ(tier_->arena(kA), arena);
  EXPECT_EQ(arena->size_bytes(), 256 * kMiB * kArenaOverCapacity);
  memory_.FailCreate(true);
  EXPECT_TRUE(absl::IsResourceExhausted(tier_->OpenDomain(DomainId(7))));
  EXPECT_EQ(tier_->arena(DomainId(7)), nullptr);
  memory_.FailCreate(false);
  EXPECT_TRUE(tier_->OpenDomain(DomainId(7)).ok());
  DramTier none(&memory_, 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(none.OpenDomain(kA)));
}

// ---- stray pages

TEST_F(DramTierTest, PagesFaultedIntoHolesAreToldOnceAndPunched) {
  ASSERT_TRUE(Grow(kA, kMiB).ok());
  const uint64_t granted = tier_->stats().granted_bytes;
  EXPECT_EQ(tier_->PunchStrayPages(), 0u);
  EXPECT_EQ(executor_.queued(), 0u) << "nothing to punch";
  device::Arena* const arena = tier_->arena(kA);
  FakeMemory::TouchHole(arena, 700 * kMiB, 1);
  FakeMemory::TouchHole(arena, 64 * kMiB, 10 * kMiB);
  uint64_t seen = 0;
  for (int tick = 0; tick < 10; ++tick) {
    seen += tier_->PunchStrayPages();
    executor_.RunAll();
  }
  EXPECT_EQ(seen, 12 * kMiB);
  EXPECT_EQ(arena->AllocatedBytes(), granted) << "granted memory was punched, or stray pages were not";
  EXPECT_EQ(tier_->stats().granted_bytes, granted);
  FakeMemory::TouchHole(arena, 700 * kMiB, 1);
  EXPECT_EQ(tier_->PunchStrayPages(), 2 * kMiB) << "a new offence is told again";
}

TEST_F(DramTierTest, MemoryOnItsWayInOrOutIsNotStray) {
  memory_.Hold();
  tier_->Grow(kA, kMiB, 16 * kMiB, [](const absl::Status&) {});
  // The memory thread is ahead of the loop: present, and nobody was told yet.
  FakeMemory::TouchHole(tier_->arena(kA), 0, 16 * kMiB);
  EXPECT_EQ(tier_->PunchStrayPages(), 0u);
  memory_.Release();
  executor_.RunAll();
  memory_.Hold();
  EXPECT_EQ(tier_->Shrink(kA, 0, [] {}), 16 * kMiB);
  EXPECT_EQ(tier_->PunchStrayPages(), 0u);
  memory_.Release();
  executor_.RunAll();
  EXPECT_EQ(memory_.counts().punched_bytes, 16 * kMiB) << "more was punched than was given back";
}

TEST_F(DramTierTest, GrowthGoesOnWhileHolesArePunched) {
  FakeMemory::TouchHole(tier_->arena(kA), 0, 1);
  memory_.Hold();
  EXPECT_EQ(tier_->PunchStrayPages(), 2 * kMiB);
  EXPECT_EQ(tier_->PunchStrayPages(), 0u);
  EXPECT_EQ(memory_.counts().pending, 1u) << "one search at a time";
  bool grown = false;
  tier_->Grow(kA, kMiB, 16 * kMiB, [&](const absl::Status& status) { grown = status.ok(); });
  memory_.Release();
  executor_.RunAll();
  EXPECT_TRUE(grown);
  EXPECT_GE(tier_->granted(kA).front().offset, 256 * kMiB * kArenaOverCapacity / kStrayPunchParts);
  EXPECT_EQ(tier_->arena(kA)->AllocatedBytes(), 16 * kMiB);
}

}  // namespace
}  // namespace kvartal::tier
