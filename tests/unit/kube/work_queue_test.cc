#include "operator/kube/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvartal::kube {
namespace {

using ::testing::Optional;

TEST(WorkQueueTest, AddedOftenIsHandedOutOnce) {
  WorkQueue queue;
  for (int i = 0; i < 5; ++i) queue.Add("a", 0);
  queue.Add("b", 0);
  EXPECT_THAT(queue.Take(0), Optional(std::string("a")));
  EXPECT_THAT(queue.Take(0), Optional(std::string("b")));
  EXPECT_EQ(queue.Take(0), std::nullopt);
  EXPECT_EQ(queue.stats(0).adds, 2u);
}

TEST(WorkQueueTest, ChangedWhileWorkedOnIsHandedOutAgainAndNeverTwiceAtOnce) {
  WorkQueue queue;
  queue.Add("a", 0);
  ASSERT_THAT(queue.Take(0), Optional(std::string("a")));
  queue.Add("a", 0);
  queue.Add("a", 0);
  EXPECT_EQ(queue.Take(0), std::nullopt);
  queue.Done("a", 0);
  EXPECT_THAT(queue.Take(0), Optional(std::string("a")));
  queue.Done("a", 0);
  EXPECT_EQ(queue.Take(0), std::nullopt);
  EXPECT_EQ(queue.stats(0).depth + queue.stats(0).working, 0u);
}

TEST(WorkQueueTest, AKeyThatFailsWaitsTwiceAsLongEachTimeUpToTheBound) {
  WorkQueue queue;
  int64_t now_ms = 0, expected_ms = kRetryBaseMs;
  for (int i = 0; i < 25; ++i) {
    queue.Retry("a", now_ms);
    ASSERT_THAT(queue.NextDueMs(), Optional(now_ms + expected_ms)) << i;
    now_ms += expected_ms - 1;
    ASSERT_EQ(queue.Take(now_ms), std::nullopt);
    ASSERT_THAT(queue.Take(++now_ms), Optional(std::string("a")));
    queue.Done("a", 0);
    expected_ms = std::min(2 * expected_ms, kRetryMaxMs);
  }
  EXPECT_EQ(expected_ms, kRetryMaxMs);
  queue.Forget("a");
  queue.Retry("a", now_ms);
  EXPECT_THAT(queue.NextDueMs(), Optional(now_ms + kRetryBaseMs));
}

// Ten thousand keys that fail at once must not become ten thousand calls at once.
TEST(WorkQueueTest, AllKeysTogetherRetryWithinTheRate) {
  WorkQueue queue;
  for (int i = 0; i < 1000; ++i) queue.Retry("key" + std::to_string(i), 0);
  size_t soon = 0;
  while (queue.Take(kRetryBaseMs)) ++soon;
  EXPECT_EQ(soon, static_cast<size_t>(kRetriesBurst));
  size_t in_ten_seconds = 0;
  while (queue.Take(10'000)) ++in_ten_seconds;
  EXPECT_EQ(in_ten_seconds, static_cast<size_t>(10 * kRetriesPerSecond) - 1);
}

TEST(WorkQueueTest, OfTwoTimesTheSoonerHolds) {
  WorkQueue queue;
  queue.AddAfter("a", 1000, 0);
  queue.AddAfter("a", 500, 0);
  queue.AddAfter("a", 2000, 0);
  EXPECT_EQ(queue.Take(499), std::nullopt);
  EXPECT_THAT(queue.Take(500), Optional(std::string("a")));
  queue.Done("a", 0);
  EXPECT_EQ(queue.Take(5000), std::nullopt);
}

TEST(WorkQueueTest, WaitingKeysDoNotHoldUpAKeyThatChanged) {
  WorkQueue queue;
  queue.AddAfter("a", 1000, 0);
  queue.Add("a", 0);
  EXPECT_THAT(queue.Take(0), Optional(std::string("a")));
}

TEST(WorkQueueTest, HowLongAKeyWaitsAndIsWorkedOnIsTold) {
  WorkQueue queue;
  queue.Add("a", 1000);
  queue.Add("a", 1090);  // it waits already
  ASSERT_TRUE(queue.Take(1100).has_value());
  queue.Add("a", 1200);  // changed meanwhile
  queue.Add("b", 1300);
  ASSERT_TRUE(queue.Take(1300).has_value());
  WorkQueueStats stats = queue.stats(1500);
  EXPECT_EQ(stats.queued.count(), 2u);
  EXPECT_EQ(stats.queued.sum_ms(), 100);
  EXPECT_EQ(stats.unfinished_ms, 400 + 200);
  EXPECT_EQ(stats.longest_ms, 400);
  queue.Done("a", 1600);
  ASSERT_TRUE(queue.Take(1600).has_value());
  stats = queue.stats(1600);
  EXPECT_EQ(stats.worked.sum_ms(), 500);
  EXPECT_EQ(stats.queued.sum_ms(), 500) << "it waited from when it changed";
  EXPECT_EQ(stats.longest_ms, 300) << "of b now";
}

TEST(HistogramTest, WhatIsObservedIsInEveryBucketThatBoundsIt) {
  Histogram histogram;
  for (const int64_t ms : {0, 5, 6, 100'000}) histogram.Observe(ms);
  EXPECT_EQ(histogram.within(0), 2u);
  EXPECT_EQ(histogram.within(1), 3u);
  EXPECT_EQ(histogram.within(Histogram::kBoundsMs.size() - 1), 3u);
  EXPECT_EQ(histogram.count(), 4u);
  EXPECT_EQ(histogram.sum_ms(), 100'011);
}

}  // namespace
}  // namespace kvartal::kube
