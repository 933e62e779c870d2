// Reads that wait for their turn, and are not wanted any more or are wanted sooner.
#include "daemon/device/fair_block_file.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/manual_executor.h"

namespace kvartal::device {
namespace {

constexpr DomainId kOwner(3);

class FairBlockFileTest : public ::testing::Test {
 protected:
  FairBlockFileTest() {
    auto fake = std::make_unique<testing::FakeBlockFile>(1 * kMiB, &executor_);
    fake_ = fake.get();
    // One at a time, and room for three of an owner.
    file_ = NewFairBlockFile(std::move(fake), {.under_way_min = 1, .under_way_bytes = 0, .owner_queue_max = 3});
  }
  bool Read(uint64_t page, IoClass io_class = IoClass::kDemandRead) {
    BlockIo io;
    io.io_class = io_class;
    io.owner = kOwner;
    io.offset = page * kSlotAlignBytes;
    io.parts[0] = {memory_.data(), kSlotAlignBytes};
    io.done = [this, page](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ended_.push_back(page);
    };
    return file_->Submit(std::move(io));
  }
  static uint64_t At(uint64_t page) { return page * kSlotAlignBytes; }

  testing::ManualExecutor executor_;
  const Mapping memory_ = *Mapping::Anonymous(kSlotAlignBytes);
  std::vector<uint64_t> ended_;
  testing::FakeBlockFile* fake_ = nullptr;
  std::unique_ptr<BlockFile> file_;
};

TEST_F(FairBlockFileTest, WhatIsTakenBackIsNotReadAndItsPlaceIsFree) {
  ASSERT_TRUE(Read(1) && Read(2) && Read(3));
  EXPECT_FALSE(Read(4)) << "the owner's queue is full";
  EXPECT_FALSE(file_->Withdraw(kOwner, At(1))) << "the device has it";
  EXPECT_FALSE(file_->Withdraw(DomainId(4), At(2))) << "it is another owner's";
  EXPECT_TRUE(file_->Withdraw(kOwner, At(2)));
  EXPECT_FALSE(file_->Withdraw(kOwner, At(2))) << "once";
  EXPECT_EQ(file_->Pending(), 2u);
  EXPECT_TRUE(Read(4));
  executor_.RunAll();
  EXPECT_EQ(ended_, (std::vector<uint64_t>{1, 3, 4}));
  EXPECT_EQ(fake_->counts().reads, 3u);
  EXPECT_EQ(file_->Pending(), 0u);
}

TEST_F(FairBlockFileTest, AWriteIsNotTakenBack) {
  ASSERT_TRUE(Read(1));
  bool written = false;
  BlockIo io;
  io.op = BlockIo::Op::kWrite;
  io.io_class = IoClass::kDemotion;
  io.owner = kOwner;
  io.offset = At(2);
  io.parts[0] = {memory_.data(), kSlotAlignBytes};
  io.done = [&](const absl::Status&) { written = true; };
  ASSERT_TRUE(file_->Submit(std::move(io)));
  EXPECT_FALSE(file_->Withdraw(kOwner, At(2)));
  executor_.RunAll();
  EXPECT_TRUE(written);
}

TEST_F(FairBlockFileTest, WhatIsReadAheadAndThenWaitedForComesWithWhatIsWaitedFor) {
  ASSERT_TRUE(Read(1) && Read(2, IoClass::kPromotion) && Read(3, IoClass::kPromotion));
  file_->Hasten(kOwner, At(3));
  file_->Hasten(kOwner, At(1));  // the device has it, and it was never read ahead
  executor_.RunAll();
  EXPECT_EQ(ended_, (std::vector<uint64_t>{1, 3, 2}));
}

}  // namespace
}  // namespace kvartal::device
