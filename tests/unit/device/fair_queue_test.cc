#include "daemon/device/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "daemon/base/units.h"

namespace kvartal::device {
namespace {

const DomainId kRed(1);
const DomainId kBlue(2);

struct Job {
  DomainId owner;
  IoClass io_class;
  int number;
  uint64_t bytes;
};

class FairQueueTest : public ::testing::Test {
 protected:
  void Push(DomainId owner, IoClass io_class, uint64_t bytes, int count = 1) {
    for (int i = 0; i < count; ++i) queue_.Push(owner, io_class, bytes, {owner, io_class, next_++, bytes});
  }
  // Bytes each owner gets of the next `count` jobs.
  std::map<DomainId, uint64_t> Serve(int count) {
    std::map<DomainId, uint64_t> served;
    for (int i = 0; i < count; ++i) {
      const auto job = queue_.Pop();
      if (!job.has_value()) break;
      served[job->owner] += job->bytes;
    }
    return served;
  }
  FairQueue<Job> queue_;
  int next_ = 0;
};

TEST_F(FairQueueTest, OneOwnersWorkComesOutInOrder) {
  Push(kRed, IoClass::kDemandRead, 448 * kKiB, 50);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(queue_.Pop()->number, i);
  EXPECT_FALSE(queue_.Pop().has_value());
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(FairQueueTest, WhatIsReadAheadComesAfterWhatIsWaitedForAndBeforeWrites) {
  Push(kRed, IoClass::kDemotion, 64 * kKiB, 10);
  Push(kRed, IoClass::kPromotion, 64 * kKiB, 10);
  Push(kBlue, IoClass::kDemandRead, 64 * kKiB, 3);
  std::vector<IoClass> order;
  for (int i = 0; i < 12; ++i) order.push_back(queue_.Pop()->io_class);
  EXPECT_LE(std::count(order.begin(), order.end(), IoClass::kDemotion), 2) << "the floor is a tenth";
  std::erase(order, IoClass::kDemotion);
  EXPECT_EQ(
      std::vector<IoClass>(order.begin(), order.begin() + 4),
      (std::vector<IoClass>{IoClass::kDemandRead, IoClass::kDemandRead, IoClass::kDemandRead, IoClass::kPromotion}));
}

TEST_F(FairQueueTest, WhatIsTakenOutLeavesTheOthersTheirTurnsAndOrder) {
  Push(kRed, IoClass::kDemandRead, 64 * kKiB, 3);   // 0 1 2
  Push(kBlue, IoClass::kDemandRead, 64 * kKiB, 1);  // 3
  const auto number = [](int wanted) { return [wanted](const Job& job) { return job.number == wanted; }; };
  EXPECT_FALSE(queue_.Take(kBlue, IoClass::kDemandRead, number(1)).has_value()) << "it is another owner's";
  EXPECT_FALSE(queue_.Take(kRed, IoClass::kPromotion, number(1)).has_value()) << "it is of another class";
  ASSERT_EQ(queue_.Take(kRed, IoClass::kDemandRead, number(1))->number, 1);
  ASSERT_EQ(queue_.Take(kBlue, IoClass::kDemandRead, number(3))->number, 3);
  EXPECT_EQ(queue_.size(), 2u);
  EXPECT_EQ(queue_.Pop()->number, 0);
  EXPECT_EQ(queue_.Pop()->number, 2);
  EXPECT_FALSE(queue_.Pop().has_value());
  Push(kBlue, IoClass::kDemandRead, 64 * kKiB, 1);
  EXPECT_EQ(queue_.Pop()->owner, kBlue) << "an owner whose line became empty has turns again";
}

TEST_F(FairQueueTest, BytesNotRequestsAreSharedByWeight) {
  queue_.SetWeight(kRed, 400);
  queue_.SetWeight(kBlue, 100);
  Push(kRed, IoClass::kDemandRead, 256 * kKiB, 4000);
  Push(kBlue, IoClass::kDemandRead, 2560 * kKiB, 400);
  auto served = Serve(2000);
  const double ratio = static_cast<double>(served[kRed]) / static_cast<double>(served[kBlue]);
  EXPECT_NEAR(ratio, 4.0, 0.2);
}

TEST_F(FairQueueTest, AFloodDoesNotDelayANewcomerByMoreThanATurn) {
  Push(kBlue, IoClass::kDemandRead, 448 * kKiB, 1000);
  Serve(10);
  Push(kRed, IoClass::kDemandRead, 448 * kKiB);
  int before = 0;
  while (queue_.Pop()->owner != kRed) ++before;
  EXPECT_LE(before, 3) << "a quantum of 1 MiB is two blocks and what was saved of another";
}

TEST_F(FairQueueTest, WorkLargerThanAQuantumIsServedByATinyWeightToo) {
  queue_.SetWeight(kBlue, 1);
  Push(kRed, IoClass::kDemandRead, 32 * kMiB, 40);
  Push(kBlue, IoClass::kDemandRead, 32 * kMiB);
  int before = 0;
  for (auto job = queue_.Pop(); job.has_value() && job->owner == kRed; job = queue_.Pop()) ++before;
  EXPECT_EQ(before, 40) << "a hundredth of the bandwidth";
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(FairQueueTest, AnIdleOwnerSavesNothingUp) {
  Push(kRed, IoClass::kDemandRead, 64 * kKiB);
  Serve(1);
  Push(kBlue, IoClass::kDemandRead, 512 * kKiB, 100);
  Serve(50);
  Push(kRed, IoClass::kDemandRead, 512 * kKiB, 100);
  auto served = Serve(20);
  EXPECT_EQ(served[kRed], served[kBlue]);
}

TEST_F(FairQueueTest, UrgentClassesGoFirst) {
  Push(kRed, IoClass::kScrub, 4 * kKiB);
  Push(kRed, IoClass::kDemotion, 4 * kKiB);
  Push(kBlue, IoClass::kDemandRead, 4 * kKiB);
  EXPECT_EQ(queue_.Pop()->io_class, IoClass::kDemandRead);
  EXPECT_EQ(queue_.Pop()->io_class, IoClass::kDemotion);
  EXPECT_EQ(queue_.Pop()->io_class, IoClass::kScrub);
}

TEST_F(FairQueueTest, BackgroundWorkKeepsItsFloorUnderAFloodOfReads) {
  Push(kRed, IoClass::kDemandRead, 512 * kKiB, 1000);
  Push(kBlue, IoClass::kDemotion, 512 * kKiB, 1000);
  auto served = Serve(500);
  const double share = static_cast<double>(served[kBlue]) / static_cast<double>(served[kBlue] + served[kRed]);
  EXPECT_NEAR(share, 0.10, 0.01);
}

TEST_F(FairQueueTest, ZeroingIsNeverStarved) {
  Push(kRed, IoClass::kDemandRead, 512 * kKiB, 1000);
  Push(kBlue, IoClass::kScrub, 512 * kKiB);
  EXPECT_EQ(Serve(30)[kBlue], 512 * kKiB);
}

TEST_F(FairQueueTest, BackgroundWorkThatHadTheDeviceAloneOwesNothing) {
  Push(kBlue, IoClass::kDemotion, 512 * kKiB, 1000);
  Serve(800);
  Push(kRed, IoClass::kDemandRead, 512 * kKiB, 1000);
  EXPECT_GT(Serve(50)[kBlue], 0u);
}

}  // namespace
}  // namespace kvartal::device
