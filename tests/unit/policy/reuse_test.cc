// What orders by hit density learn, and what they make of it.
#include <gtest/gtest.h>

#include <set>

#include "daemon/base/limits.h"
#include "daemon/policy/ghost_memory.h"
#include "daemon/policy/lhd_order.h"
#include "daemon/policy/reuse_classes.h"
#include "daemon/policy/write_worth.h"

namespace kvartal::policy {
namespace {

constexpr uint32_t kTicksPerSecond = 1000 / kTickMs;
constexpr uint32_t kStart = 1u << 30;
constexpr double kMinuteS = 60;

uint32_t At(uint32_t seconds) { return kStart + seconds * kTicksPerSecond; }

BlockTraits Traits(uint8_t frequency, uint64_t offset_tokens = 0, SessionPhase phase = SessionPhase::kNew) {
  BlockTraits traits;
  traits.frequency = frequency;
  traits.offset_tokens = offset_tokens;
  traits.phase = phase;
  return traits;
}

TEST(ReuseClassOf, TellsFrequencyDepthAndPhaseApart) {
  std::set<uint32_t> seen;
  for (const uint8_t frequency : {1, 2, 3, 6}) {
    for (const uint64_t offset : {0, 1024, 6 * 1024, 20 * 1024}) {
      for (const SessionPhase phase : {SessionPhase::kNew, SessionPhase::kContinuing}) {
        const uint32_t reuse_class = ReuseClassOf(Traits(frequency, offset, phase));
        EXPECT_LT(reuse_class, kReuseClassCount);
        seen.insert(reuse_class);
      }
    }
  }
  EXPECT_EQ(seen.size(), kReuseClassCount);
  EXPECT_EQ(ReuseClassOf(Traits(3)), ReuseClassOf(Traits(5)));
  EXPECT_EQ(ReuseClassOf(Traits(6)), ReuseClassOf(Traits(255)));
  EXPECT_EQ(ReuseClassOf(Traits(1, 1023)), ReuseClassOf(Traits(1)));
  EXPECT_EQ(ReuseClassOf(Traits(1, uint64_t{1} << 40)), ReuseClassOf(Traits(1, 20 * 1024)));
}

class ReuseClassesTest : public ::testing::Test {
 protected:
  // `count` blocks of a class are used, and used again after `gap_s` when that is not 0.
  void Teach(uint32_t reuse_class, int count, uint32_t gap_s) {
    for (int i = 0; i < count; ++i) classes_.Use({}, reuse_class, At(0));
    if (gap_s == 0) return;
    const PastUse past{At(0), 1, static_cast<uint8_t>(reuse_class)};
    for (int i = 0; i < count; ++i) classes_.Use(past, kOther, At(gap_s));
  }
  static constexpr uint32_t kOther = 31;

  ReuseClasses classes_;
  Residence residence_;
};

TEST_F(ReuseClassesTest, WhatComesBackIsWorthMoreThanWhatDoesNot) {
  Teach(0, 100, 0);
  Teach(1, 100, 100);
  EXPECT_GT(classes_.HitDensity(1, At(100), kMinuteS), 10 * classes_.HitDensity(0, At(100), kMinuteS));
}

TEST_F(ReuseClassesTest, WhatComesBackSoonerIsWorthMore) {
  Teach(1, 100, 20);
  Teach(0, 100, 200);
  EXPECT_GT(classes_.HitDensity(1, At(200), kMinuteS), classes_.HitDensity(0, At(200), kMinuteS));
}

TEST_F(ReuseClassesTest, WorthFallsWithIdleness) {
  Teach(0, 40, 100);
  Teach(0, 60, 0);
  double before = classes_.HitDensity(0, At(100), kMinuteS);
  for (const uint32_t last_used : {80, 50, 20, 0}) {
    const double now = classes_.HitDensity(0, At(last_used), kMinuteS);
    EXPECT_LT(now, before);
    EXPECT_GT(now, 0);
    before = now;
  }
}

TEST_F(ReuseClassesTest, ThePastFadesByPeriodsNotByEvents) {
  Teach(0, 1000, 0);
  const double seen_useless = classes_.HitDensity(0, At(0), kMinuteS);
  ReuseClasses others = classes_;
  classes_.Use({}, kOther, At(3600));
  for (uint32_t second = 1; second <= 3600; ++second) others.Use({}, kOther, At(second));
  EXPECT_GT(classes_.HitDensity(0, At(3600), kMinuteS), 10 * seen_useless) << "twelve periods later little is left";
  EXPECT_DOUBLE_EQ(classes_.HitDensity(0, At(3600), kMinuteS), others.HitDensity(0, At(3600), kMinuteS));
}

TEST_F(ReuseClassesTest, MoreReusesThanUsesIsNotMoreThanCertain) {
  const PastUse past{At(0), 1, 0};
  for (int i = 0; i < 1000; ++i) classes_.Use(past, kOther, At(10));
  const double density = classes_.HitDensity(0, At(0), kMinuteS);
  EXPECT_GT(density, 0);
  EXPECT_LT(density, 1);
}

TEST_F(ReuseClassesTest, AChanceIsThePartThatWasUsedAgain) {
  EXPECT_DOUBLE_EQ(classes_.Chance(0), 0.2) << "of what nothing is known of";
  Teach(0, 99, 0);
  EXPECT_DOUBLE_EQ(classes_.Chance(0), 0.2 / 100);
  Teach(1, 40, 10);
  Teach(1, 59, 0);
  EXPECT_DOUBLE_EQ(classes_.Chance(1), 40.2 / 100);
  const PastUse past{At(0), 1, 1};
  for (int i = 0; i < 1000; ++i) classes_.Use(past, kOther, At(10));
  EXPECT_LT(classes_.Chance(1), 1) << "more than all seem to return";
}

TEST_F(ReuseClassesTest, ABlockIsWorthAWriteForWhatItDidOrForWhatItsLikeDo) {
  const BlockTraits fresh = Traits(1);
  EXPECT_EQ(WriteWorthOf(fresh, nullptr), WriteWorth::kAny);
  EXPECT_EQ(WriteWorthOf(fresh, &classes_), WriteWorth::kAny) << "of what nothing is known of";
  Teach(ReuseClassOf(fresh), 75, 0);
  Teach(ReuseClassOf(fresh), 25, 10);
  EXPECT_EQ(WriteWorthOf(fresh, &classes_), WriteWorth::kAny) << "one in four is not more than that";
  Teach(ReuseClassOf(fresh), 2, 10);
  EXPECT_EQ(WriteWorthOf(fresh, &classes_), WriteWorth::kLikely);
  EXPECT_EQ(WriteWorthOf(Traits(1, 20 * 1024), &classes_), WriteWorth::kAny) << "another class";
  EXPECT_EQ(WriteWorthOf(Traits(2), nullptr), WriteWorth::kProven);
  EXPECT_EQ(WriteWorthOf(Traits(1, 0, SessionPhase::kContinuing), nullptr), WriteWorth::kProven);
  EXPECT_EQ(WriteWorthOf(Traits(9, 0, SessionPhase::kEnded), &classes_), WriteWorth::kAny)
      << "its client said that nobody asks for it again";
}

TEST_F(ReuseClassesTest, ABlockIsWorthNoMoreThanThoseItIsFoundThrough) {
  constexpr uint64_t kOffsets[] = {0, 1024, 6 * 1024, 20 * 1024};
  for (const uint64_t offset : kOffsets) Teach(ReuseClassOf(Traits(1, offset)), 10, 10);
  for (const uint64_t at : {uint64_t{1023}, uint64_t{6143}, uint64_t{20'000}, uint64_t{1'000'000}}) {
    EXPECT_EQ(WriteWorthOf(Traits(1, at), &classes_), WriteWorth::kLikely) << at;
  }
  for (const uint64_t useless : kOffsets) {
    ReuseClasses taught = classes_;
    for (int i = 0; i < 100; ++i) taught.Use({}, ReuseClassOf(Traits(1, useless)), At(10));
    for (const uint64_t at : kOffsets) {
      EXPECT_EQ(WriteWorthOf(Traits(1, at), &taught), at >= useless ? WriteWorth::kAny : WriteWorth::kLikely)
          << at << " behind " << useless;
    }
  }
}

TEST_F(ReuseClassesTest, ALateReportDoesNotTurnTimeBack) {
  classes_.Use({}, 0, At(100));
  classes_.Use({}, 0, At(50));
  EXPECT_EQ(classes_.now_tick(), At(100));
  EXPECT_EQ(classes_.IdleSeconds(At(200)), 0) << "used later than now: not idle";
}

TEST_F(ReuseClassesTest, TheOrderTakesTheWorstClassAndItsOldestBlock) {
  Teach(ReuseClassOf(Traits(1)), 100, 0);
  Teach(ReuseClassOf(Traits(3)), 100, 50);
  const auto order = NewLhdOrder(&classes_, &residence_);
  const auto insert = [&](uint32_t id, uint8_t frequency, uint32_t seconds) {
    BlockTraits traits = Traits(frequency);
    traits.last_access_tick = At(seconds);
    order->Insert(EntryId(id), traits);
  };
  insert(1, 3, 10);  // the oldest of all, of a good class
  insert(2, 1, 40);
  insert(3, 1, 30);
  insert(4, 3, 20);
  EXPECT_EQ(order->Victim([](EntryId) { return true; }, 1), EntryId(3));
  EXPECT_EQ(order->Victim([](EntryId id) { return id.value() % 2 == 0; }, 10), EntryId(2));
  EXPECT_EQ(order->Oldest(), EntryId(1));
}

TEST_F(ReuseClassesTest, OfEquallyGoodBlocksTheLargerGoes) {
  classes_.Use({}, kOther, At(0));
  const auto order = NewLhdOrder(&classes_, &residence_);
  BlockTraits small = Traits(1);
  small.slot_bytes = 4096;
  BlockTraits large = Traits(1);
  large.slot_bytes = 8192;
  small.last_access_tick = large.last_access_tick = At(0);
  order->Insert(EntryId(1), small);
  order->Insert(EntryId(2), large);
  EXPECT_EQ(order->Victim([](EntryId) { return true; }, 1), EntryId(2));
  EXPECT_TRUE(order->GoesBefore(large, small));
  EXPECT_FALSE(order->GoesBefore(small, large));
}

// A client may make any number of layouts: a victim looks at the heads of few rows all the same, and each leaf is found
// again in the row it went to.
TEST_F(ReuseClassesTest, HoweverManySizesThereAreAVictimCostsNoMore) {
  constexpr uint32_t kSizes = 512;
  classes_.Use({}, kOther, At(0));
  const auto order = NewLhdOrder(&classes_, &residence_);
  const auto traits_of = [](uint32_t number) {
    BlockTraits traits = Traits(1 + number % 3);
    traits.slot_bytes = 4096 * (1 + number % kSizes);
    traits.last_access_tick = At(number);
    return traits;
  };
  std::set<uint32_t> left;
  for (uint32_t number = 0; number < 2 * kSizes; ++number) {
    order->Insert(EntryId(number), traits_of(number));
    left.insert(number);
  }
  size_t asked = 0;
  order->Victim([&](EntryId) { return ++asked > 0; }, UINT32_MAX);
  EXPECT_LT(asked, kSizes / 2);
  // Some go as clients please, the rest as victims.
  for (uint32_t number = 0; number < 2 * kSizes; number += 3) {
    order->Remove(EntryId(number), traits_of(number));
    left.erase(number);
  }
  while (order->size() > 0) {
    const EntryId victim = order->Victim([](EntryId) { return true; }, UINT32_MAX);
    ASSERT_EQ(left.erase(victim.value()), 1u) << victim.value();
    order->Remove(victim, traits_of(victim.value()));
  }
  EXPECT_TRUE(left.empty());
}

TEST(GhostMemory, KnowsABlockThatReturnsOnce) {
  GhostMemory ghosts;
  ghosts.Remember(7, {At(5), 3, 11}, 100, 1);
  EXPECT_EQ(ghosts.Recall(8).frequency, 0);
  const PastUse past = ghosts.Recall(7);
  EXPECT_EQ(past.tick, At(5));
  EXPECT_EQ(past.frequency, 3);
  EXPECT_EQ(past.reuse_class, 11);
  EXPECT_EQ(ghosts.Recall(7).frequency, 0);
}

TEST(GhostMemory, RemembersTheLatestGenerationAndIsBounded) {
  constexpr uint64_t kCached = 20'000;
  constexpr uint64_t kGeneration = kGhostsPerBlock * kCached;
  GhostMemory ghosts;
  for (uint64_t fingerprint = 0; fingerprint < 10 * kGeneration; ++fingerprint) {
    ghosts.Remember(fingerprint, {kStart, 1, 0}, kCached, 1);
    ASSERT_LE(ghosts.size(), 2 * kGeneration);
  }
  for (uint64_t back = 1; back <= kGeneration; ++back) ASSERT_EQ(ghosts.Recall(10 * kGeneration - back).frequency, 1);
  EXPECT_EQ(ghosts.Recall(0).frequency, 0);
}

TEST(GhostMemory, IsBoundedHoweverLargeTheCache) {
  GhostMemory ghosts;
  for (uint64_t fingerprint = 0; fingerprint < 3 * kGhostsMax; ++fingerprint) {
    ghosts.Remember(fingerprint, {kStart, 1, 0}, UINT32_MAX, 1);
  }
  EXPECT_LE(ghosts.size(), 2 * kGhostsMax);
}

TEST(GhostMemory, ManyTenantsShareWhatANodeRemembers) {
  constexpr uint64_t kTenants = 1000;
  GhostMemory ghosts;
  for (uint64_t fingerprint = 0; fingerprint < 3 * kGhostsMin; ++fingerprint) {
    ghosts.Remember(fingerprint, {kStart, 1, 0}, UINT32_MAX, kTenants);
  }
  EXPECT_LE(ghosts.size() * kTenants, 2 * kGhostsNodeMax);
}

}  // namespace
}  // namespace kvartal::policy
