// The faults of the fake disk: a test that relies on one must get that one and no other.
#include "tests/support/fake_block_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "tests/support/manual_executor.h"

namespace kvartal::testing {
namespace {

using device::BlockIo;

constexpr uint64_t kPages = 16;
constexpr uint64_t kPage = 4 * kKiB;

class FakeBlockFileTest : public ::testing::Test {
 protected:
  FakeBlockFileTest() { std::memset(buffer_.data(), 0xff, buffer_.size()); }

  // Submits a transfer of the whole buffer; its status, if it ends when pumped.
  std::optional<absl::Status> Run(BlockIo::Op op, uint64_t offset = 0) {
    auto result = std::make_shared<std::optional<absl::Status>>();
    BlockIo io;
    io.op = op;
    io.offset = offset;
    io.parts[0] = {buffer_.data(), buffer_.size()};
    io.done = [result](absl::Status status) { *result = std::move(status); };
    EXPECT_TRUE(file_.Submit(std::move(io)));
    executor_.RunAll();
    return *result;
  }

  // Pages from the front that a write of 0xff reached; -1 when a page is neither whole nor untouched, or pages follow a
  // gap.
  int WholePagesOnDisk() {
    int whole = 0;
    bool gap = false;
    for (uint64_t page = 0; page < kPages; ++page) {
      const auto bytes = file_.bytes().subspan(page * kPage, kPage);
      const auto written = std::count(bytes.begin(), bytes.end(), std::byte{0xff});
      if (written == 0) gap = true;
      if (written != 0 && (gap || written != static_cast<ptrdiff_t>(kPage))) return -1;
      whole += written != 0 ? 1 : 0;
    }
    return whole;
  }

  static uint64_t OnesIn(std::span<const std::byte> bytes) {
    uint64_t ones = 0;
    for (const std::byte byte : bytes) ones += static_cast<uint64_t>(std::popcount(std::to_integer<unsigned>(byte)));
    return ones;
  }

  ManualExecutor executor_;
  FakeBlockFile file_{64 * kPage, &executor_};
  Mapping buffer_ = *Mapping::Anonymous(kPages * kPage);
};

TEST_F(FakeBlockFileTest, AnIoErrorChangesNothing) {
  file_.FaultNext(DiskFault::kIoError);
  EXPECT_TRUE(absl::IsUnavailable(*Run(BlockIo::Op::kWrite)));
  EXPECT_EQ(WholePagesOnDisk(), 0);
  EXPECT_TRUE(Run(BlockIo::Op::kWrite)->ok()) << "one fault was asked for";
  EXPECT_EQ(WholePagesOnDisk(), static_cast<int>(kPages));
}

TEST_F(FakeBlockFileTest, AShortTransferMovesAFrontPartAndFails) {
  for (int i = 0; i < 20; ++i) {
    std::memset(file_.bytes().data(), 0, file_.bytes().size());
    file_.FaultNext(DiskFault::kShortTransfer);
    EXPECT_TRUE(absl::IsUnavailable(*Run(BlockIo::Op::kWrite)));
    ASSERT_GE(WholePagesOnDisk(), 0);
    ASSERT_LT(WholePagesOnDisk(), static_cast<int>(kPages));
  }
}

TEST_F(FakeBlockFileTest, ATornWriteSaysItIsWhole) {
  bool moved_some = false;
  for (int i = 0; i < 20; ++i) {
    std::memset(file_.bytes().data(), 0, file_.bytes().size());
    file_.FaultNext(DiskFault::kTornWrite);
    EXPECT_TRUE(Run(BlockIo::Op::kWrite)->ok());
    ASSERT_GE(WholePagesOnDisk(), 0);
    ASSERT_LT(WholePagesOnDisk(), static_cast<int>(kPages));
    moved_some = moved_some || WholePagesOnDisk() > 0;
  }
  EXPECT_TRUE(moved_some);
}

TEST_F(FakeBlockFileTest, ABitFlipIsOneBitOnTheDiskOrInTheBuffer) {
  file_.FaultNext(DiskFault::kBitFlip);
  EXPECT_TRUE(Run(BlockIo::Op::kWrite)->ok());
  const uint64_t all = buffer_.size() * 8;
  EXPECT_EQ(OnesIn(file_.bytes().first(buffer_.size())), all - 1);
  std::memset(file_.bytes().data(), 0, file_.bytes().size());
  file_.FaultNext(DiskFault::kBitFlip);
  EXPECT_TRUE(Run(BlockIo::Op::kRead)->ok());
  EXPECT_EQ(OnesIn({buffer_.data(), buffer_.size()}), 1u);
  EXPECT_EQ(OnesIn(file_.bytes()), 0u);
}

TEST_F(FakeBlockFileTest, AFullDiskTakesNoWritesAndGivesReads) {
  file_.FaultNext(DiskFault::kNoSpace, 2);
  EXPECT_TRUE(absl::IsResourceExhausted(*Run(BlockIo::Op::kWrite)));
  EXPECT_EQ(WholePagesOnDisk(), 0);
  EXPECT_TRUE(Run(BlockIo::Op::kRead)->ok());
}

TEST_F(FakeBlockFileTest, ADelayedTransferIsOvertakenAndTakesEffectAfterThoseThatOvertookIt) {
  std::vector<int> order;
  Mapping zeros = *Mapping::Anonymous(kPages * kPage);
  for (int i = 0; i < 2; ++i) {
    file_.FaultNext(DiskFault::kDelayed, i == 0 ? 1 : 0);
    BlockIo io;
    io.op = BlockIo::Op::kWrite;
    io.parts[0] = {i == 0 ? buffer_.data() : zeros.data(), buffer_.size()};
    io.done = [&order, i](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      order.push_back(i);
    };
    ASSERT_TRUE(file_.Submit(std::move(io)));
  }
  executor_.RunAll();
  EXPECT_EQ(order, (std::vector<int>{1, 0}));
  EXPECT_EQ(WholePagesOnDisk(), static_cast<int>(kPages)) << "what came last stays";
}

TEST_F(FakeBlockFileTest, WhatAClientLendsForAWriteIsNeverChanged) {
  const std::vector<std::byte> before(buffer_.data(), buffer_.data() + buffer_.size());
  for (const DiskFault fault : {DiskFault::kIoError, DiskFault::kNoSpace, DiskFault::kShortTransfer,
                                DiskFault::kTornWrite, DiskFault::kBitFlip, DiskFault::kDelayed}) {
    file_.FaultNext(fault);
    Run(BlockIo::Op::kWrite);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), buffer_.data())) << static_cast<int>(fault);
  }
}

TEST_F(FakeBlockFileTest, ATransferThatNeverCompletesStaysPendingUntilItIsFailed) {
  file_.FaultNext(DiskFault::kNeverCompletes);
  std::optional<absl::Status> result;
  BlockIo io;
  io.op = BlockIo::Op::kWrite;
  io.parts[0] = {buffer_.data(), buffer_.size()};
  io.done = [&](absl::Status status) { result = std::move(status); };
  ASSERT_TRUE(file_.Submit(std::move(io)));
  executor_.RunAll();
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(file_.Pending(), 1u);
  EXPECT_EQ(file_.Lost(), 1u);
  file_.FailLost();
  EXPECT_TRUE(absl::IsUnavailable(*result));
  EXPECT_EQ(file_.Pending(), 0u);
  EXPECT_EQ(file_.Lost(), 0u);
}

TEST_F(FakeBlockFileTest, ThatATransferIsOverdueShowsAfterSoManyQuestions) {
  file_.SetOverdueAfter(3);
  EXPECT_EQ(file_.Overdue(), 0u);
  EXPECT_EQ(file_.Overdue(), 0u);
  EXPECT_EQ(file_.Overdue(), 1u);
  file_.SetOverdue(0);
  EXPECT_EQ(file_.Overdue(), 0u);
}

TEST_F(FakeBlockFileTest, ReorderingChangesTheOrderAndLosesNothing) {
  file_.SetReorder(true, 3);
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) {
    BlockIo io;
    io.parts[0] = {buffer_.data(), buffer_.size()};
    io.done = [&order, i](const absl::Status&) { order.push_back(i); };
    ASSERT_TRUE(file_.Submit(std::move(io)));
  }
  executor_.RunAll();
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(FakeBlockFileTest, HeldTransfersWaitAndAPowerCutForgetsThem) {
  file_.Hold();
  EXPECT_FALSE(Run(BlockIo::Op::kWrite).has_value());
  EXPECT_EQ(file_.Pending(), 1u);
  file_.CutPower();
  file_.Release();
  executor_.RunAll();
  EXPECT_EQ(WholePagesOnDisk(), 0);
  EXPECT_EQ(file_.Pending(), 0u);
  file_.Hold();
  EXPECT_FALSE(Run(BlockIo::Op::kWrite).has_value());
  file_.Release();
  executor_.RunAll();
  EXPECT_EQ(WholePagesOnDisk(), static_cast<int>(kPages));
}

TEST_F(FakeBlockFileTest, TheSameSeedGivesTheSameFaults) {
  DiskFaultRates rates;
  rates.io_error = 2000;
  rates.bit_flip = 2000;
  std::vector<std::vector<bool>> runs;
  for (const uint64_t seed : {5u, 5u, 6u}) {
    file_.SetFaultRates(rates, seed);
    runs.emplace_back();
    for (int i = 0; i < 60; ++i) runs.back().push_back(Run(BlockIo::Op::kWrite)->ok());
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
  const auto failed = std::count(runs[0].begin(), runs[0].end(), false);
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 30);
}

}  // namespace
}  // namespace kvartal::testing
