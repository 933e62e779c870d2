#include "operator/kube/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvartal::kube {
namespace {

using ::testing::Optional;

TEST(WorkQueueTest, AddedOftenIsHandedOutOnce) {
  WorkQueue queue;
  for (int i = 0; i < 5; ++i) queue.Add("a");
  queue.Add("b");
  EXPECT_THAT(queue.Take(0), Optional(std::string("a")));
  EXPECT_THAT(queue.Take(0), Optional(std::string("b")));
  EXPECT_EQ(queue.Take(0), std::nullopt);
  EXPECT_EQ(queue.stats().adds, 2u);
}

TEST(WorkQueueTest, ChangedWhileWorkedOnIsHandedOutAgainAndNeverTwiceAtOnce) {
  WorkQueue queue;
  queue.Add("a");
  ASSERT_THAT(queue.Take(0), Optional(std::string("a")));
  queue.Add("a");
  queue.Add("a");
  EXPECT_EQ(queue.Take(0), std::nullopt);
  queue.Done("a");
  EXPECT_THAT(queue.Take(0), Optional(std::string("a")));
  queue.Done("a");
  EXPECT_EQ(queue.Take(0), std::nullopt);
  EXPECT_EQ(queue.stats().depth + queue.stats().working, 0u);
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
    queue.Done("a");
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
  queue.Done("a");
  EXPECT_EQ(queue.Take(5000), std::nullopt);
}

TEST(WorkQueueTest, WaitingKeysDoNotHoldUpAKeyThatChanged) {
  WorkQueue queue;
  queue.AddAfter("a", 1000, 0);
  queue.Add("a");
  EXPECT_THAT(queue.Take(0), Optional(std::string("a")));
}

}  // namespace
}  // namespace kvartal::kube
