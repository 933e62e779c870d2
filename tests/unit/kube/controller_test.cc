#include "operator/kube/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "operator/kube/limits.h"
#include "tests/unit/kube/kube_loop.h"

namespace kvartal::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ControllerTest : public testing::KubeLoop {
 protected:
  ControllerTest()
      : controller_(std::make_unique<Controller>(loop_.get(), &clock_, 2,
                                                 [this](const std::string& key, Controller::Finish finish) {
                                                   keys_.push_back(key);
                                                   finishes_.push_back(std::move(finish));
                                                 })) {}
  void FinishOne(ReconcileResult result) {
    const Controller::Finish finish = std::move(finishes_.front());
    finishes_.pop_front();
    finish(result);
    RunDue();
  }

  std::vector<std::string> keys_;
  std::deque<Controller::Finish> finishes_;
  std::unique_ptr<Controller> controller_;
};

TEST_F(ControllerTest, NothingIsReconciledBeforeItMay) {
  controller_->Add("a");
  RunDue();
  EXPECT_THAT(keys_, IsEmpty());
  controller_->Start();
  RunDue();
  EXPECT_THAT(keys_, ElementsAre("a"));
}

TEST_F(ControllerTest, SoManyAtOnceAndNoKeyTwice) {
  controller_->Start();
  for (const char* key : {"a", "a", "b", "c"}) controller_->Add(key);
  RunDue();
  EXPECT_THAT(keys_, ElementsAre("a", "b"));
  controller_->Add("a");
  FinishOne(ReconcileResult::kDone);
  FinishOne(ReconcileResult::kDone);
  EXPECT_THAT(keys_, ElementsAre("a", "b", "c", "a"));
}

TEST_F(ControllerTest, AFailureIsTriedAgainLaterAndASuccessForgetsIt) {
  controller_->Start();
  controller_->Add("a");
  RunDue();
  FinishOne(ReconcileResult::kRetry);
  EXPECT_EQ(keys_.size(), 1u);
  Advance(kRetryBaseMs);
  EXPECT_EQ(keys_.size(), 2u);
  FinishOne(ReconcileResult::kDone);
  Advance(60'000);
  EXPECT_EQ(keys_.size(), 2u);
  EXPECT_EQ(controller_->stats().failed, 1u);
}

// As when a replica begins to lead: every policy is looked at, and most need nothing.
TEST_F(ControllerTest, ManyKeysThatNeedNothingLeaveTheLoopItsTurns) {
  size_t done = 0;
  Controller quick(loop_.get(), &clock_, 2, [&](const std::string&, const Controller::Finish& finish) {
    ++done;
    finish(ReconcileResult::kDone);
  });
  constexpr size_t kKeys = 10 * kReconcilesPerTurn;
  for (size_t key = 0; key < kKeys; ++key) quick.Add(std::to_string(key));
  quick.Start();
  size_t turns = 0, heard = 0;
  for (; done < kKeys && turns < 100; ++turns) {
    const size_t before = done;
    loop_->Post([&] { ++heard; });  // a node, or an answer about the lease
    loop_->RunOnce(0);
    ASSERT_LE(done - before, kReconcilesPerTurn);
  }
  EXPECT_EQ(done, kKeys);
  EXPECT_LE(turns, 12u);
  EXPECT_EQ(heard, turns);
}

// What comes too soon after a failure says nothing of what failed.
TEST_F(ControllerTest, AKeyThatIsNotDueYetHasFailedAsOftenAsBefore) {
  controller_->Start();
  controller_->Add("a");
  RunDue();
  constexpr int kFailures = 10;
  for (int failed = 1; failed <= kFailures; ++failed) {
    FinishOne(ReconcileResult::kRetry);
    while (finishes_.empty()) Advance(100);
    FinishOne(ReconcileResult::kLater);
    controller_->Add("a");
    RunDue();
    ASSERT_EQ(finishes_.size(), 1u);
  }
  const size_t before = keys_.size();
  FinishOne(ReconcileResult::kRetry);
  Advance((kRetryBaseMs << kFailures) - 200);
  EXPECT_EQ(keys_.size(), before);
  Advance(400);
  EXPECT_EQ(keys_.size(), before + 1);
  EXPECT_EQ(controller_->stats().failed, kFailures + 1u);
}

TEST_F(ControllerTest, WhoAsksUsToWaitIsLeftAloneForSoLong) {
  controller_->Start();
  controller_->Add("a");
  RunDue();
  controller_->PauseFor(5'000);
  FinishOne(ReconcileResult::kRetry);
  controller_->Add("b");
  Advance(4'900);
  EXPECT_THAT(keys_, ElementsAre("a"));
  Advance(200);
  EXPECT_THAT(keys_, ElementsAre("a", "b", "a"));
}

TEST_F(ControllerTest, StopWaitsForWhatRunsAndStartsNothing) {
  controller_->Start();
  controller_->Add("a");
  RunDue();
  bool stopped = false;
  controller_->Stop([&] { stopped = true; });
  controller_->Add("b");
  RunDue();
  EXPECT_FALSE(stopped);
  FinishOne(ReconcileResult::kDone);
  EXPECT_TRUE(stopped);
  EXPECT_THAT(keys_, ElementsAre("a"));
}

TEST_F(ControllerTest, StopDoesNotWaitForEver) {
  controller_->Start();
  controller_->Add("a");
  RunDue();
  bool stopped = false;
  controller_->Stop([&] { stopped = true; });
  Advance(kStopMs - 1);
  EXPECT_FALSE(stopped);
  Advance(1);
  EXPECT_TRUE(stopped);
  controller_.reset();
  finishes_.front()(ReconcileResult::kDone);  // late, and nobody is there any more
}

}  // namespace
}  // namespace kvartal::kube
