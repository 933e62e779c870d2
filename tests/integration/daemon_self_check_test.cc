// Checks that run in a copy of the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>

#include "daemon/base/check.h"
#include "daemon/base/clock.h"
#include "daemon/process/self_check.h"

namespace kvartal::process {
namespace {

using ::testing::HasSubstr;

class SelfCheckTest : public ::testing::Test {
 protected:
  absl::Status Run(const std::function<void()>& check) {
    std::optional<absl::Status> result;
    RunSelfCheck(loop_.get(), check, [&](const absl::Status& status) { result = status; });
    while (!result.has_value()) loop_->RunOnce(-1);
    return *result;
  }
  SystemClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(&clock_);
};

TEST_F(SelfCheckTest, ACheckThatReturnsIsOk) {
  EXPECT_TRUE(Run([] {}).ok());
}

TEST_F(SelfCheckTest, AFailedCheckIsInternalWithItsReasonAndThisProcessLives) {
  const absl::Status status = Run([] { KV_CHECK(1 + 1 == 3); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 + 1 == 3"));
}

TEST_F(SelfCheckTest, WhatTheCopyChangesStaysInTheCopy) {
  int value = 1;
  EXPECT_TRUE(Run([&] { value = 2; }).ok());
  EXPECT_EQ(value, 1);
}

TEST_F(SelfCheckTest, ACheckThatPrintsWithoutEndIsCutAndStillAnswered) {
  const absl::Status status = Run([] {
    for (int i = 0; i < 100'000; ++i) std::fprintf(stderr, "line %d\n", i);
    KV_CHECK(false);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_LT(status.message().size(), 8192u);
}

}  // namespace
}  // namespace kvartal::process
