#include "daemon/tier/hbm_tier.h"

#include <algorithm>
#include <iterator>

#include "daemon/base/limits.h"
#include "tests/unit/tier/hbm_tier_fixture.h"

namespace kvartal::tier {
namespace {

// ---- the tables

TEST(SlabStateTest, EachStateGoesOnByItsOwnEventsAlone) {
  using S = SlabState;
  using E = SlabEvent;
  struct Move {
    S from;
    E event;
    S to;
  };
  constexpr Move kLegal[] = {{S::kActive, E::kAskedBack, S::kDetaching}, {S::kDetaching, E::kDeadline, S::kZombie},
                             {S::kDetaching, E::kLetGo, S::kQuiesced},   {S::kZombie, E::kLetGo, S::kQuiesced},
                             {S::kQuiesced, E::kZeroed, S::kScrubbed},   {S::kScrubbed, E::kReleased, S::kFree}};
  for (int from = 0; from <= static_cast<int>(S::kFree); ++from) {
    for (int event = 0; event <= static_cast<int>(E::kReleased); ++event) {
      const auto* const legal = std::find_if(std::begin(kLegal), std::end(kLegal), [&](const Move& move) {
        return static_cast<int>(move.from) == from && static_cast<int>(move.event) == event;
      });
      const auto state = static_cast<S>(from);
      const auto what = static_cast<E>(event);
      if (legal != std::end(kLegal)) {
        EXPECT_EQ(NextSlabState(state, what), legal->to);
      } else {
        EXPECT_DEATH(NextSlabState(state, what), "check failed") << from << " and " << event;
      }
    }
  }
}

TEST(SlabBytesTest, ADomainGrowsByWhatItHasFrom2MiBTo1GiB) {
  uint64_t held = 0;
  std::vector<uint64_t> sizes;
  while (held < 4 * kGiB) {
    sizes.push_back(SlabBytesFor(512 * kKiB, held, kTiB));
    held += sizes.back();
  }
  EXPECT_EQ(sizes.front(), 2 * kMiB);
  EXPECT_EQ(sizes[1], 2 * kMiB);
  for (size_t i = 2; i < sizes.size(); ++i) EXPECT_EQ(sizes[i], std::min(2 * sizes[i - 1], kSlabMaxBytes)) << i;
  EXPECT_EQ(sizes.back(), kSlabMaxBytes);
}

TEST(SlabBytesTest, NoSlotSizeWastesMuchAndNothingExceedsWhatCanBeCharged) {
  for (uint64_t slot = kSlotAlignBytes; slot <= kBlockBytesMax; slot += 37 * kSlotAlignBytes) {
    for (const uint64_t held : {uint64_t{0}, 2 * kMiB, 300 * kMiB, 40 * kGiB}) {
      const uint64_t bytes = SlabBytesFor(static_cast<uint32_t>(slot), held, kTiB);
      ASSERT_EQ(bytes % device::kSlabAlignBytes, 0u);
      ASSERT_LE(bytes, kSlabMaxBytes);
      ASSERT_GE(bytes, slot);
      ASSERT_LT(bytes % slot * 100, bytes * kExtentWastePercentMax) << slot << " in " << bytes;
    }
    for (const uint64_t most : {uint64_t{0}, 2 * kMiB - 1, 3 * kMiB, 33 * kMiB, 700 * kMiB + 1}) {
      const uint64_t bytes = SlabBytesFor(static_cast<uint32_t>(slot), 40 * kGiB, most);
      ASSERT_LE(bytes, most);
      ASSERT_EQ(bytes > 0, most >= RoundUp(slot, device::kSlabAlignBytes));
    }
  }
}

TEST_F(HbmTierTest, GrowthFollowsWhatTheDomainHasOrIsGettingHere) {
  EXPECT_EQ(tier_.GrowthBytes(kA, kSlot, kTiB), 2 * kMiB);
  ASSERT_TRUE(Grow(tier_, kA, 8 * kMiB).ok());
  EXPECT_EQ(tier_.GrowthBytes(kA, kSlot, kTiB), 8 * kMiB);
  tier_.Grow(kA, kSlot, 8 * kMiB, [](const absl::Status&) {});
  EXPECT_EQ(tier_.GrowthBytes(kA, kSlot, kTiB), 16 * kMiB);
  EXPECT_EQ(tier_.GrowthBytes(kB, kSlot, kTiB), 2 * kMiB);
  EXPECT_EQ(other_gpu_.GrowthBytes(kA, kSlot, kTiB), 2 * kMiB);
  EXPECT_EQ(tier_.GrowthBytes(kSlot, kTiB), 2 * kMiB);
  EXPECT_EQ(tier_.GrowthBytes(kA, kBlockBytesMax + 1, kTiB), 0u);
  EXPECT_EQ(tier_.GrowthBytes(kA, 0, kTiB), 0u);
}

TEST(FakeSlabMemoryTest, ItSeesWhatATierMustNotDo) {
  testing::ManualExecutor executor;
  testing::FakeSlabMemory memory(&executor);
  std::unique_ptr<device::Slab> slab;
  ASSERT_TRUE(memory.Create(0, 2 * kMiB, [&](auto made) { slab = *std::move(made); }).ok());
  executor.RunAll();
  EXPECT_TRUE(slab->Export().ok());
  EXPECT_EQ(memory.counts().dirty_exports, 1u) << "nobody had zeroed it";
  slab.reset();
  EXPECT_EQ(memory.counts().dirty_releases, 1u) << "somebody may have written to it";
}

// ---- growing

TEST_F(HbmTierTest, NothingIsGrantedBeforeItIsZeroed) {
  std::optional<absl::Status> result;
  StartGrow(tier_, kA, 4 * kMiB, &result);
  ASSERT_TRUE(executor_.RunOne());  // it is made
  EXPECT_EQ(memory_.live_bytes(0), 4 * kMiB);
  EXPECT_FALSE(result.has_value());
  EXPECT_TRUE(heard_.granted.empty());
  EXPECT_FALSE(tier_.Take(kA, kSlot).valid());
  EXPECT_EQ(tier_.Grant(kA, SlabId(0), kPod).status().code(), absl::StatusCode::kNotFound);
  executor_.RunAll();
  ASSERT_TRUE(result.has_value() && result->ok());
  ASSERT_EQ(heard_.granted.size(), 1u);
  EXPECT_TRUE(tier_.Take(kA, kSlot).valid());
  EXPECT_TRUE(tier_.Grant(kA, heard_.granted[0].id, kPod).ok());
}

TEST_F(HbmTierTest, ASlabThatIsNotZeroedIsReleasedAndTheGrowUndone) {
  memory_.FailNextScrubs(1);
  EXPECT_EQ(Grow(tier_, kA, 4 * kMiB).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(heard_.granted.empty());
  EXPECT_EQ(memory_.live_bytes(0), 0u);
  EXPECT_TRUE(tier_.CloseDomain(kA));
}

TEST_F(HbmTierTest, ACreateThatFailsIsUndone) {
  memory_.FailNextCreates(1);
  EXPECT_TRUE(absl::IsResourceExhausted(Grow(tier_, kA, kCapacity)));
  EXPECT_EQ(tier_.stats().granted_bytes, 0u);
  EXPECT_TRUE(Grow(tier_, kA, kCapacity).ok()) << "all of it is free again";
}

TEST_F(HbmTierTest, AQueueThatIsFullRefusesAtOnceAndIsUndone) {
  memory_.SetQueueMax(1);
  std::optional<absl::Status> first, second;
  StartGrow(tier_, kA, 2 * kMiB, &first);
  ASSERT_TRUE(StartGrow(tier_, kB, 2 * kMiB, &second).has_value()) << "refused before Grow returned";
  EXPECT_TRUE(absl::IsResourceExhausted(*second));
  EXPECT_TRUE(tier_.CloseDomain(kB));
  executor_.RunAll();
  EXPECT_TRUE(first.has_value() && first->ok());
}

TEST_F(HbmTierTest, TheCapacityHoldsForWhatIsOnItsWayInAndOut) {
  std::optional<absl::Status> first, refused;
  StartGrow(tier_, kA, 48 * kMiB, &first);
  EXPECT_TRUE(absl::IsResourceExhausted(*StartGrow(tier_, kB, 18 * kMiB, &refused))) << "growing counts";
  executor_.RunAll();
  memory_.Hold();
  ASSERT_EQ(Shrink(kA), 48 * kMiB);
  EXPECT_EQ(tier_.stats().granted_bytes, 0u);
  EXPECT_EQ(tier_.stats().reclaiming_bytes, 48 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(*StartGrow(tier_, kB, 18 * kMiB, &refused))) << "reclaiming counts";
  memory_.Resume();
  executor_.RunAll();
  EXPECT_TRUE(Grow(tier_, kB, kCapacity).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Grow(tier_, kA, 2 * kMiB)));
  EXPECT_EQ(memory_.live_bytes(0), kCapacity);
}

// ---- GPU groups and domains

TEST_F(HbmTierTest, ADomainGetsNothingOnAGpuOutsideItsGroup) {
  const DomainId bound(5);
  constexpr int kGroup[] = {1};
  tier_.OpenDomain(bound, kGroup);
  other_gpu_.OpenDomain(bound, kGroup);
  EXPECT_EQ(Grow(tier_, bound, 2 * kMiB).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Grow(other_gpu_, bound, 2 * kMiB).ok());
  EXPECT_EQ(memory_.live_bytes(0), 0u);
  EXPECT_EQ(memory_.live_bytes(1), 2 * kMiB);
}

TEST_F(HbmTierTest, ADomainThatLosesItsGpuKeepsNothingItMayUse) {
  const SlabId slab = Granted(kA, 2 * kMiB, kPod);
  std::optional<absl::Status> on_its_way;
  StartGrow(tier_, kA, 2 * kMiB, &on_its_way);
  constexpr int kElsewhere[] = {1};
  tier_.OpenDomain(kA, kElsewhere);
  executor_.RunAll();
  EXPECT_EQ(on_its_way->code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(memory_.live_bytes(0), 2 * kMiB);
  EXPECT_FALSE(tier_.Take(kA, kSlot).valid());
  EXPECT_EQ(tier_.Grant(kA, slab, kOtherPod).status().code(), absl::StatusCode::kPermissionDenied);
  Shrink(kA);
  EXPECT_TRUE(tier_.PeerDetached(kPod, slab));
  EXPECT_EQ(Shrink(kA), 2 * kMiB);
  executor_.RunAll();
  EXPECT_EQ(memory_.live_bytes(0), 0u);
}

TEST_F(HbmTierTest, ASlabIsOneDomainsAndNeverAnothers) {
  const SlabId of_a = Granted(kA, 2 * kMiB, kPod);
  EXPECT_EQ(tier_.Grant(kB, of_a, kOtherPod).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(tier_.Take(kB, kSlot).valid());
  const uint64_t creates = memory_.counts().creates;
  tier_.PeerGone(kPod);
  Shrink(kA);
  executor_.RunAll();
  ASSERT_EQ(memory_.live_bytes(0), 0u) << "released, not kept for the next";
  ASSERT_TRUE(Grow(tier_, kB, 2 * kMiB).ok());
  EXPECT_EQ(memory_.counts().creates, creates + 1);
  EXPECT_NE(heard_.granted.back().id, of_a);
  EXPECT_EQ(tier_.Grant(kB, of_a, kOtherPod).status().code(), absl::StatusCode::kNotFound) << "ids are not used again";
}

TEST_F(HbmTierTest, ADomainClosesWhenItHasNothing) {
  std::optional<absl::Status> result;
  StartGrow(tier_, kA, 2 * kMiB, &result);
  EXPECT_FALSE(tier_.CloseDomain(kA)) << "on its way";
  executor_.RunAll();
  EXPECT_FALSE(tier_.CloseDomain(kA));
  Shrink(kA);
  EXPECT_FALSE(tier_.CloseDomain(kA)) << "being zeroed";
  executor_.RunAll();
  EXPECT_TRUE(tier_.CloseDomain(kA));
  EXPECT_TRUE(tier_.CloseDomain(DomainId(77))) << "nobody had it";
}

// ---- slots

TEST_F(HbmTierTest, SlotsAreTakenFromTheFullestSlabAndKnowTheirPlace) {
  ASSERT_TRUE(Grow(tier_, kA, 2 * kMiB).ok());
  ASSERT_TRUE(Grow(tier_, kA, 2 * kMiB).ok());
  std::vector<SlotId> slots;
  for (int i = 0; i < 8; ++i) slots.push_back(tier_.Take(kA, kSlot));
  EXPECT_FALSE(tier_.Take(kA, kSlot).valid());
  EXPECT_FALSE(tier_.Take(kA, kSlot / 2).valid()) << "of another size";
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(tier_.PlaceOf(kA, slots[i]).slab, heard_.granted[i / 4].id);
    EXPECT_EQ(tier_.PlaceOf(kA, slots[i]).offset, i % 4 * kSlot);
  }
  EXPECT_EQ(tier_.stats().used_bytes, 4 * kMiB);
  EXPECT_EQ(tier_.stats().slots_used, 8u);
  for (const size_t i : {1, 2, 6}) tier_.Give(kA, slots[i]);
  EXPECT_EQ(tier_.Take(kA, kSlot - 1), slots[6]) << "two are free in the other";
  EXPECT_EQ(tier_.EmptyBytes(kA), 0u);
  for (const size_t i : {0, 3}) tier_.Give(kA, slots[i]);
  EXPECT_EQ(tier_.EmptyBytes(kA), 2 * kMiB);
}

TEST_F(HbmTierTest, GivingTwiceOrOutsideASlabEndsTheProcess) {
  ASSERT_TRUE(Grow(tier_, kA, 2 * kMiB).ok());
  const SlotId slot = tier_.Take(kA, kSlot);
  tier_.Give(kA, slot);
  EXPECT_DEATH(tier_.Give(kA, slot), "check failed");
  EXPECT_DEATH(tier_.Give(kA, SlotId(0x7fffffff)), "check failed");
  EXPECT_DEATH(tier_.Give(kB, slot), "check failed");
}

}  // namespace
}  // namespace kvartal::tier
