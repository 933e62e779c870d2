#include "tools/kvartal-bench/stats.h"

#include <gtest/gtest.h>

#include <string>

namespace kvartal::bench {
namespace {

TEST(Stats, PercentileIsTheNearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  EXPECT_EQ(Percentile(samples, 50), 50);
  EXPECT_EQ(Percentile(samples, 99), 99);
  EXPECT_EQ(Percentile(samples, 100), 100);
  EXPECT_EQ(Percentile(samples, 0), 1);
  EXPECT_EQ(Percentile({5}, 99), 5);
  EXPECT_EQ(Percentile({}, 50), 0);
}

TEST(Stats, MedianOfOddAndEven) {
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 6}), 5.5);
  EXPECT_EQ(Median({}), 0);
}

TEST(Stats, MedianRatioIsOfRoundsNotOfMedians) {
  RatioRounds rounds;
  rounds.measured = {1, 10, 100};
  rounds.ceiling = {2, 10, 400};
  EXPECT_EQ(rounds.MedianRatio(), 0.5);
}

TEST(Stats, InterleavedRunsTakeTurnsAtStarting) {
  std::string order;
  const auto rounds = Interleave(
      3,
      [&]() -> absl::StatusOr<double> {
        order += 'm';
        return 1.0;
      },
      [&]() -> absl::StatusOr<double> {
        order += 'c';
        return 2.0;
      });
  ASSERT_TRUE(rounds.ok());
  EXPECT_EQ(order, "mccmmc");
  EXPECT_EQ(rounds->MedianRatio(), 0.5);
}

TEST(Stats, TheFirstErrorEndsInterleavedRuns) {
  int ran = 0;
  const auto rounds = Interleave(
      3, [&]() -> absl::StatusOr<double> { return absl::UnavailableError("gone"); },
      [&]() -> absl::StatusOr<double> {
        ++ran;
        return 1.0;
      });
  EXPECT_EQ(rounds.status(), absl::UnavailableError("gone"));
  EXPECT_EQ(ran, 0);
}

}  // namespace
}  // namespace kvartal::bench
