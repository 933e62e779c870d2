#include "daemon/policy/write_budget.h"

#include <gtest/gtest.h>

#include "daemon/base/units.h"

namespace kvartal::policy {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kRate = 10 * kMiB;  // 6000 MiB saved at most
constexpr uint64_t kMost = kRate * kWriteBudgetSavedSeconds;

TEST(WriteBudgetTest, WithoutOneEverythingIsWritten) {
  WriteBudget none(0, 0);
  for (int i = 0; i < 1000; ++i) none.Spend(0, kGiB);
  EXPECT_FALSE(none.limited() || none.scarce(0));
  EXPECT_TRUE(none.Admits(0, kGiB, false));
}

TEST(WriteBudgetTest, WhatIsLeftDecidesWhatIsWritten) {
  WriteBudget budget(kRate, 0);
  EXPECT_TRUE(budget.Admits(0, kMiB, false));
  budget.Spend(0, kMost / 2);
  EXPECT_TRUE(budget.Admits(0, kMiB, false)) << "half is left";
  budget.Spend(0, kMiB);
  EXPECT_TRUE(budget.scarce(0));
  EXPECT_FALSE(budget.Admits(0, kMiB, false));
  EXPECT_TRUE(budget.Admits(0, kMiB, true));
  budget.Spend(0, kMost / 2 - kMiB);
  EXPECT_EQ(budget.saved_bytes(0), 0u);
  EXPECT_FALSE(budget.Admits(0, kMiB, true)) << "a budget is not exceeded, by whatever it is";
}

TEST(WriteBudgetTest, OverALongTimeNoMoreIsWrittenThanTheRateAndWhatWasSaved) {
  WriteBudget budget(kRate, 0);
  uint64_t written = 0;
  constexpr int64_t kSeconds = 7200;
  for (int64_t second = 0; second < kSeconds; ++second) {
    for (int i = 0; i < 50; ++i) {
      if (!budget.Admits(second * kSecondNs, kMiB, true)) continue;
      budget.Spend(second * kSecondNs, kMiB);
      written += kMiB;
    }
  }
  EXPECT_LE(written, kMost + kRate * kSeconds);
  EXPECT_GE(written, kRate * (kSeconds - 1)) << "nor is it wasted";
}

TEST(WriteBudgetTest, ADebtIsPaidBackBeforeAnythingElseIsWritten) {
  WriteBudget budget(kRate, 0);
  budget.Spend(0, kMost + 20 * kMiB);  // it had to be
  EXPECT_FALSE(budget.Admits(2 * kSecondNs, kMiB, true));
  EXPECT_TRUE(budget.Admits(3 * kSecondNs, kMiB, true));
}

TEST(WriteBudgetTest, TheSmallestRateLetsTheLargestBlockPassOnceItIsSaved) {
  WriteBudget budget(1, 0);
  EXPECT_TRUE(budget.Admits(0, kBlockBytesMax, false));
}

TEST(WriteBudgetTest, AClockThatStandsStillOrGoesBackEarnsNothing) {
  WriteBudget budget(kRate, 10 * kSecondNs);
  budget.Spend(10 * kSecondNs, kMost);
  EXPECT_EQ(budget.saved_bytes(5 * kSecondNs), 0u);
  EXPECT_EQ(budget.saved_bytes(11 * kSecondNs), kRate);
}

}  // namespace
}  // namespace kvartal::policy
