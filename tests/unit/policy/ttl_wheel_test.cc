#include "daemon/policy/ttl_wheel.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

std::vector<EntryId> PopAll(TtlWheel* wheel) {
  std::vector<EntryId> due;
  uint32_t work = UINT32_MAX;
  for (EntryId id = wheel->PopDue(&work); id.valid(); id = wheel->PopDue(&work)) due.push_back(id);
  return due;
}

TEST(TtlWheel, FiresAtItsTickAndNeverBefore) {
  for (const uint32_t wait : {1u, 2u, 255u, 256u, 257u, 65'535u, 65'536u, 70'000u}) {
    constexpr uint32_t kStart = (1u << 30) + 77;
    TtlWheel wheel(kStart);
    wheel.Schedule(EntryId(5), kStart + wait);
    wheel.Advance(kStart + wait - 1);
    EXPECT_TRUE(PopAll(&wheel).empty()) << wait;
    for (int i = 0; i < 2; ++i) wheel.Advance(kStart + wait);  // one call moves kTimerStepsMax ticks at most
    EXPECT_EQ(PopAll(&wheel), std::vector<EntryId>{EntryId(5)}) << wait;
    EXPECT_EQ(wheel.size(), 0u);
  }
}

TEST(TtlWheel, WhatIsLateAlreadyFiresAtOnceAndWhatNeverComesDoesNot) {
  TtlWheel wheel(1000);
  wheel.Schedule(EntryId(1), 10);
  wheel.Schedule(EntryId(2), TtlWheel::kNever);
  EXPECT_EQ(PopAll(&wheel), std::vector<EntryId>{EntryId(1)});
  EXPECT_EQ(wheel.DueOf(EntryId(2)), TtlWheel::kNever);
  EXPECT_EQ(wheel.size(), 0u);
}

TEST(TtlWheel, ABlockHasOneTimerWhichMovesAndGoes) {
  TtlWheel wheel(0);
  wheel.Schedule(EntryId(1), 10);
  wheel.Schedule(EntryId(1), 100'000);
  wheel.Schedule(EntryId(1), 20);
  wheel.Schedule(EntryId(2), 20);
  EXPECT_EQ(wheel.size(), 2u);
  wheel.Advance(19);
  EXPECT_TRUE(PopAll(&wheel).empty());
  wheel.Advance(20);
  EXPECT_TRUE(wheel.behind());
  wheel.Cancel(EntryId(2));  // while it waits for its turn
  EXPECT_EQ(PopAll(&wheel), std::vector<EntryId>{EntryId(1)});
  EXPECT_FALSE(wheel.behind());
}

// Against a list of (tick, block), from a seed: all waits a wheel of 32 bits has, moved and cancelled at random.
TEST(TtlWheel, AgreesWithASortedList) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    uint32_t now = static_cast<uint32_t>(random() % 100'000'000);
    TtlWheel wheel(now);
    std::map<uint32_t, uint32_t> due_of;  // block -> tick
    for (int step = 0; step < 3000; ++step) {
      const auto block = static_cast<uint32_t>(random() % 400);
      if (random() % 4 == 0) {
        wheel.Cancel(EntryId(block));
        due_of.erase(block);
      } else {
        const uint32_t due = now + static_cast<uint32_t>(random() % (uint64_t{1} << (random() % 22)));
        wheel.Schedule(EntryId(block), due);
        due_of[block] = due;
      }
      if (random() % 8 != 0) continue;
      now += static_cast<uint32_t>(random() % (uint64_t{1} << (random() % 16)));
      wheel.Advance(now);
      std::map<uint32_t, uint32_t> fired;
      for (const EntryId id : PopAll(&wheel)) fired[id.value()] = due_of.at(id.value());
      for (const auto& [id, due] : fired) ASSERT_LE(due, now);
      std::erase_if(due_of, [&](const auto& timer) { return fired.contains(timer.first); });
      for (const auto& [id, due] : due_of) ASSERT_GT(due, now) << "block " << id << " did not fire";
      ASSERT_EQ(wheel.size(), due_of.size());
    }
  }
}

TEST(TtlWheel, AWaveIsTakenInPartsAndNothingIsLost) {
  constexpr uint32_t kBlocks = 100'000, kWork = 512;
  TtlWheel wheel(0);
  for (uint32_t i = 0; i < kBlocks; ++i) wheel.Schedule(EntryId(i), 300);
  wheel.Advance(300);
  uint32_t fired = 0, turns = 0;
  while (wheel.behind()) {
    uint32_t work = kWork, in_turn = 0;
    while (wheel.PopDue(&work).valid()) ++in_turn;
    EXPECT_LE(in_turn, kWork);
    fired += in_turn;
    ++turns;
  }
  EXPECT_EQ(fired, kBlocks);
  EXPECT_LE(turns, kBlocks / kWork + 1);
}

TEST(TtlWheel, ATimerIsLookedAtOnceALevelAtMost) {
  constexpr uint32_t kBlocks = 1000;
  TtlWheel wheel(1);
  for (uint32_t i = 0; i < kBlocks; ++i) wheel.Schedule(EntryId(i), (1u << 24) + 70'000 + i);
  uint64_t looks = 0;
  for (uint32_t now = 1; wheel.size() > 0; now += 50'000) {
    wheel.Advance(now);
    uint32_t work = 1'000'000;
    while (wheel.PopDue(&work).valid()) {
    }
    looks += 1'000'000 - work;
  }
  EXPECT_LE(looks, uint64_t{kBlocks} * 4);
}

TEST(TtlWheel, CatchesUpAfterAnyStandstillInBoundedSteps) {
  TtlWheel wheel(0);
  const uint32_t due = 10 * kTimerStepsMax + 5;
  wheel.Schedule(EntryId(1), due);
  size_t calls = 0;
  for (size_t fired = 0; fired == 0 && calls < 100; ++calls) {
    wheel.Advance(due);
    fired = PopAll(&wheel).size();
  }
  EXPECT_EQ(calls, 11u);
}

TEST(TtlWheel, TakesTwelveBytesABlock) {
  TtlWheel wheel(0);
  constexpr uint32_t kBlocks = 1'000'000;
  for (uint32_t i = 0; i < kBlocks; ++i) wheel.Schedule(EntryId(i), 1000 + i);
  EXPECT_LE(wheel.MemoryBytes(), kBlocks * 13u);
}

}  // namespace
}  // namespace kvartal::policy
