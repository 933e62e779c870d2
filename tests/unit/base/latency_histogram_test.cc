#include "daemon/base/latency_histogram.h"

#include <gtest/gtest.h>

namespace kvartal {
namespace {

TEST(LatencyHistogram, EveryValueLiesInItsBucket) {
  for (uint64_t us = 0; us < 100'000; ++us) {
    const size_t bucket = LatencyHistogram::BucketOf(us);
    ASSERT_LE(us, LatencyHistogram::UpperUs(bucket)) << us;
    if (bucket > 0) {
      ASSERT_GT(us, LatencyHistogram::UpperUs(bucket - 1)) << us;
    }
    ASSERT_LE(LatencyHistogram::UpperUs(bucket), us + us / 4) << us;
  }
}

TEST(LatencyHistogram, PercentilesAreNearestRankAndNeverTooSmall) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.PercentileUs(99), 0u);
  for (int64_t us = 1; us <= 100; ++us) histogram.AddNs(us * 1000);
  EXPECT_GE(histogram.PercentileUs(50), 50u);
  EXPECT_LE(histogram.PercentileUs(50), 60u);
  EXPECT_GE(histogram.PercentileUs(99), 99u);
  EXPECT_EQ(histogram.count(), 100u);
  EXPECT_EQ(histogram.sum_us(), 5050u);
}

TEST(LatencyHistogram, PartsOfAMicrosecondAreRoundedUpAndTheLongestHasAPlace) {
  LatencyHistogram histogram;
  histogram.AddNs(1);
  EXPECT_EQ(histogram.PercentileUs(100), 1u);
  histogram.AddNs(INT64_MAX);
  EXPECT_GT(histogram.PercentileUs(100), 1'000'000u);
}

}  // namespace
}  // namespace kvartal
