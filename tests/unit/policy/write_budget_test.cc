#include "daemon/policy/write_budget.h"

#include <gtest/gtest.h>

#include "daemon/base/units.h"

namespace kvartal::policy {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kRate = 10 * kMiB;  // 6000 MiB saved at most
constexpr uint64_t kMost = kRate * kWriteBudgetSavedSeconds;
constexpr int64_t kFullNs = static_cast<int64_t>(kWriteBudgetSavedSeconds) * kSecondNs;  // it is by then

TEST(WriteBudgetTest, WithoutOneEverythingIsWritten) {
  WriteBudget none(0, 0);
  for (int i = 0; i < 1000; ++i) none.Spend(0, kGiB);
  EXPECT_FALSE(none.limited());
  EXPECT_EQ(none.Asks(0), WriteWorth::kAny);
  EXPECT_TRUE(none.Admits(0, kGiB, WriteWorth::kAny));
}

TEST(WriteBudgetTest, WhatIsLeftDecidesWhatIsWritten) {
  WriteBudget budget(kRate, 0);
  ASSERT_EQ(budget.saved_bytes(kFullNs), kMost);
  EXPECT_TRUE(budget.Admits(kFullNs, kMiB, WriteWorth::kAny));
  budget.Spend(kFullNs, kMost / 2);
  EXPECT_TRUE(budget.Admits(kFullNs, kMiB, WriteWorth::kAny)) << "half is left";
  budget.Spend(kFullNs, kMiB);
  EXPECT_EQ(budget.Asks(kFullNs), WriteWorth::kLikely);
  EXPECT_FALSE(budget.Admits(kFullNs, kMiB, WriteWorth::kAny));
  EXPECT_TRUE(budget.Admits(kFullNs, kMiB, WriteWorth::kLikely));
  EXPECT_TRUE(budget.Admits(kFullNs, kMiB, WriteWorth::kProven));
  budget.Spend(kFullNs, kMost / 4 - kMiB);
  EXPECT_TRUE(budget.Admits(kFullNs, kMiB, WriteWorth::kLikely)) << "a quarter is left";
  budget.Spend(kFullNs, kMiB);
  EXPECT_EQ(budget.Asks(kFullNs), WriteWorth::kProven);
  EXPECT_FALSE(budget.Admits(kFullNs, kMiB, WriteWorth::kLikely));
  EXPECT_TRUE(budget.Admits(kFullNs, kMiB, WriteWorth::kProven));
  budget.Spend(kFullNs, kMost / 4 - kMiB);
  EXPECT_EQ(budget.saved_bytes(kFullNs), 0u);
  EXPECT_FALSE(budget.Admits(kFullNs, kMiB, WriteWorth::kProven)) << "a budget is not exceeded, by whatever it is";
}

TEST(WriteBudgetTest, WhoStartsOverAndOverHasNotAFullOneEachTime) {
  EXPECT_EQ(WriteBudget(kRate, kSecondNs).saved_bytes(kSecondNs), kMost / 2);
  uint64_t written = 0;
  for (int start = 0; start < 10; ++start) {
    WriteBudget budget(kRate, 0);
    while (budget.Admits(0, kMiB, WriteWorth::kAny)) {
      budget.Spend(0, kMiB);
      written += kMiB;
    }
  }
  EXPECT_LE(written, 10 * kMiB) << "of what nobody has used again";
}

TEST(WriteBudgetTest, OverALongTimeNoMoreIsWrittenThanTheRateAndWhatWasSaved) {
  WriteBudget budget(kRate, 0);
  uint64_t written = 0;
  constexpr int64_t kSeconds = 7200;
  for (int64_t second = 0; second < kSeconds; ++second) {
    for (int i = 0; i < 50; ++i) {
      if (!budget.Admits(second * kSecondNs, kMiB, WriteWorth::kProven)) continue;
      budget.Spend(second * kSecondNs, kMiB);
      written += kMiB;
    }
  }
  EXPECT_LE(written, kMost / 2 + kRate * kSeconds);
  EXPECT_GE(written, kRate * (kSeconds - 1)) << "nor is it wasted";
}

TEST(WriteBudgetTest, ADebtIsPaidBackBeforeAnythingElseIsWritten) {
  WriteBudget budget(kRate, 0);
  budget.Spend(0, kMost / 2 + 20 * kMiB);  // it had to be
  EXPECT_FALSE(budget.Admits(2 * kSecondNs, kMiB, WriteWorth::kProven));
  EXPECT_TRUE(budget.Admits(3 * kSecondNs, kMiB, WriteWorth::kProven));
}

TEST(WriteBudgetTest, TheSmallestRateLetsTheLargestBlockPassOnceItIsSaved) {
  WriteBudget budget(1, 0);
  EXPECT_TRUE(budget.Admits(0, kBlockBytesMax, WriteWorth::kAny));
}

TEST(WriteBudgetTest, AClockThatStandsStillOrGoesBackEarnsNothing) {
  WriteBudget budget(kRate, 10 * kSecondNs);
  budget.Spend(10 * kSecondNs, kMost / 2);
  EXPECT_EQ(budget.saved_bytes(5 * kSecondNs), 0u);
  EXPECT_EQ(budget.saved_bytes(11 * kSecondNs), kRate);
}

}  // namespace
}  // namespace kvartal::policy
