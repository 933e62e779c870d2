// A flood of denials: all of them are told, in a number of lines that does not grow with it.
#include "daemon/attach/denial_fold.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

constexpr int64_t kPeriodNs = kAuditDenialPeriodMs * kNsPerMs;

class DenialFoldTest : public ::testing::Test {
 protected:
  void Deny(uint32_t uid, DenialReason reason = DenialReason::kUnknownUid, uint32_t pid = 1) {
    DoorEvent event;
    event.denial = reason;
    event.uid = uid;
    event.pid = pid;
    event.why = "no policy names it";
    fold_.Note(event, now_ns_, tell_);
  }
  void PassMs(int64_t ms) {
    now_ns_ += ms * kNsPerMs;
    fold_.Tick(now_ns_, tell_);
  }
  uint64_t Denials() const {
    uint64_t sum = 0;
    for (const Told& told : told_) sum += told.repeated == 0 ? 1 : told.repeated;
    return sum;
  }

  struct Told {
    DenialReason denial;
    uint32_t uid, pid;
    uint64_t repeated;
    bool various;
    std::string why;
  };
  std::vector<Told> told_;
  int64_t now_ns_ = 1;
  DenialFold fold_;
  std::function<void(const DoorEvent&)> tell_ = [this](const DoorEvent& event) {
    told_.push_back({event.denial, event.uid, event.pid, event.repeated, event.various, std::string(event.why)});
  };
};

TEST_F(DenialFoldTest, TheFirstIsToldAtOnceAndTheOthersByTheirNumber) {
  Deny(7, DenialReason::kUnknownUid, 100);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].repeated, 0u);
  for (uint32_t i = 0; i < 10'000; ++i) Deny(7, DenialReason::kUnknownUid, 200 + i);
  Deny(8);
  EXPECT_EQ(told_.size(), 2u) << "another kind is told at once, too";
  PassMs(kAuditDenialPeriodMs);
  ASSERT_EQ(told_.size(), 3u);
  EXPECT_EQ(told_[2].uid, 7u);
  EXPECT_EQ(told_[2].repeated, 10'000u);
  EXPECT_EQ(told_[2].pid, 10'199u) << "the last one's";
  EXPECT_EQ(told_[2].why, "no policy names it");
  PassMs(10 * kAuditDenialPeriodMs);
  EXPECT_EQ(told_.size(), 3u) << "once";
  Deny(7);
  EXPECT_EQ(told_.size(), 4u) << "a new period";
}

TEST_F(DenialFoldTest, KindsAreBoundedAndNoDenialIsLost) {
  uint64_t sent = 0;
  for (int period = 0; period < 3; ++period) {
    for (uint32_t uid = 0; uid < 5'000; ++uid, ++sent) {
      Deny(uid, uid % 2 == 0 ? DenialReason::kUnknownUid : DenialReason::kDisagreement);
    }
    PassMs(kAuditDenialPeriodMs);
  }
  EXPECT_EQ(Denials(), sent);
  EXPECT_LE(told_.size(), 3 * (2 * kAuditDenialsMax + kDenialReasonCount));
  EXPECT_TRUE(told_.back().various) << "whose they were is not told";
}

TEST_F(DenialFoldTest, TheEndTellsWhatIsLeft) {
  Deny(7);
  Deny(7);
  fold_.End(tell_);
  EXPECT_EQ(Denials(), 2u);
}

TEST_F(DenialFoldTest, AFloodThatNeverEndsIsToldPeriodByPeriod) {
  for (int i = 0; i < 100; ++i) {
    Deny(7);
    now_ns_ += kPeriodNs / 10;
  }
  EXPECT_GE(told_.size(), 10u);
  EXPECT_LE(told_.size(), 22u);
}

}  // namespace
}  // namespace kvartal::attach
