// What block_file.h promises, of the fake and of the real one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/device/block_file.h"
#include "daemon/device/fair_block_file.h"
#include "daemon/device/uring.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/faulty_block_file.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::device {
namespace {

using ::kvartal::testing::FakeBlockFile;
using ::kvartal::testing::FakeDisk;
using ::kvartal::testing::FaultyBlockFile;
using ::kvartal::testing::MakeFakeDisk;
using ::kvartal::testing::ManualExecutor;
using ::kvartal::testing::ScratchDir;

constexpr uint64_t kFileBytes = 16 * kMiB;

// One disk that can be opened again and again.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual absl::StatusOr<std::unique_ptr<BlockFile>> Open(Executor* executor, size_t queue_max) = 0;
};

class FakeKind : public Disk {
 public:
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(Executor* executor, size_t queue_max) override {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<FakeBlockFile> file, FakeBlockFile::Open(disk_, executor));
    file->SetQueueMax(queue_max);
    return file;
  }

 private:
  const std::shared_ptr<FakeDisk> disk_ = MakeFakeDisk(kFileBytes);
};

class RealKind : public Disk {
 public:
  explicit RealKind(std::optional<IoEngine> engine) : engine_(engine) {}
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(Executor* executor, size_t queue_max) override {
    BlockFileOptions options;
    options.path = dir_.File("disk");
    options.size_bytes = kFileBytes;
    options.depth = 4;
    options.queue_max = queue_max;
    options.engine = engine_;
    KV_ASSIGN_OR_RETURN(OpenedBlockFile opened, OpenBlockFile(options, executor));
    return std::move(opened.file);
  }

 private:
  const std::optional<IoEngine> engine_;
  const ScratchDir dir_;
};

// Behind the turns of its owners.
class FairKind : public RealKind {
 public:
  FairKind() : RealKind(std::nullopt) {}
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(Executor* executor, size_t queue_max) override {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealKind::Open(executor, 0));
    return NewFairBlockFile(std::move(file),
                            {.under_way_min = 2, .under_way_bytes = 64 * kKiB, .owner_queue_max = queue_max});
  }
};

// Behind the faults of tests/support, none of which was asked for but another order.
class FaultyKind : public RealKind {
 public:
  FaultyKind() : RealKind(std::nullopt) {}
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(Executor* executor, size_t queue_max) override {
    KV_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealKind::Open(executor, 0));
    auto faulty = std::make_unique<FaultyBlockFile>(std::move(file), executor);
    faulty->SetQueueMax(queue_max);
    faulty->SetReorder(true);
    return faulty;
  }
};

// Page-aligned memory with a pattern that depends on the seed and the position.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes) : mapping_(*Mapping::Anonymous(bytes)) {}
  void Fill(uint32_t seed) {
    auto* words = reinterpret_cast<uint32_t*>(mapping_.data());
    for (uint64_t i = 0; i < size() / sizeof(uint32_t); ++i) words[i] = static_cast<uint32_t>(i * 2654435761u) ^ seed;
  }
  bool Equals(const Buffer& other) const {
    return size() == other.size() && std::memcmp(data(), other.data(), size()) == 0;
  }
  std::byte* data() const { return mapping_.data(); }
  uint64_t size() const { return mapping_.size(); }

 private:
  Mapping mapping_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Disk>()> make;
  bool needs_ring = false;
};

class BlockFileContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().needs_ring && !ProbeUring(-1).ok()) GTEST_SKIP() << ProbeUring(-1);
    disk_ = GetParam().make();
    Reopen();
  }

  void Reopen(size_t queue_max = 0) {
    file_.reset();
    auto opened = disk_->Open(&executor_, queue_max);
    ASSERT_TRUE(opened.ok()) << opened.status();
    file_ = *std::move(opened);
  }

  static BlockIo Io(BlockIo::Op op, uint64_t offset, const std::vector<const Buffer*>& parts) {
    BlockIo io;
    io.op = op;
    io.offset = offset;
    io.part_count = static_cast<int>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) io.parts[i] = {parts[i]->data(), parts[i]->size()};
    return io;
  }

  absl::Status Run(BlockIo io) {
    std::optional<absl::Status> result;
    io.done = [&](absl::Status status) {
      EXPECT_FALSE(result.has_value()) << "done ran twice";
      EXPECT_EQ(std::this_thread::get_id(), loop_thread_);
      result = std::move(status);
    };
    EXPECT_TRUE(file_->Submit(std::move(io)));
    EXPECT_FALSE(result.has_value()) << "done ran before the loop did";
    executor_.RunUntil([&] { return result.has_value(); });
    return *result;
  }
  absl::Status Write(uint64_t offset, const std::vector<const Buffer*>& parts) {
    return Run(Io(BlockIo::Op::kWrite, offset, parts));
  }
  absl::Status Read(uint64_t offset, const std::vector<const Buffer*>& parts) {
    return Run(Io(BlockIo::Op::kRead, offset, parts));
  }

  const std::thread::id loop_thread_ = std::this_thread::get_id();
  ManualExecutor executor_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<BlockFile> file_;
};

TEST_P(BlockFileContract, TwoPartsLieOneAfterAnotherOnTheDisk) {
  Buffer header(4 * kKiB);
  Buffer payload(448 * kKiB);
  header.Fill(1);
  payload.Fill(2);
  ASSERT_TRUE(Write(8 * kKiB, {&header, &payload}).ok());
  Buffer whole(header.size() + payload.size());
  ASSERT_TRUE(Read(8 * kKiB, {&whole}).ok());
  EXPECT_EQ(std::memcmp(whole.data(), header.data(), header.size()), 0);
  EXPECT_EQ(std::memcmp(whole.data() + header.size(), payload.data(), payload.size()), 0);
  Buffer before(8 * kKiB);
  const Buffer zeros(8 * kKiB);
  ASSERT_TRUE(Read(0, {&before}).ok());
  EXPECT_TRUE(before.Equals(zeros)) << "bytes beside the transfer changed";
}

TEST_P(BlockFileContract, TransfersOfManyPartsAreWhole) {
  // Cut at kIoPartBytes, with the cuts off the bounds of both parts.
  Buffer first(kIoPartBytes + 12 * kKiB);
  Buffer second(3 * kIoPartBytes - 4 * kKiB);
  first.Fill(3);
  second.Fill(4);
  ASSERT_TRUE(Write(4 * kKiB, {&first, &second}).ok());
  Buffer first_read(first.size());
  Buffer second_read(second.size());
  ASSERT_TRUE(Read(4 * kKiB, {&first_read, &second_read}).ok());
  EXPECT_TRUE(first_read.Equals(first));
  EXPECT_TRUE(second_read.Equals(second));
}

TEST_P(BlockFileContract, TheHookOfAWriteMakesTheBytesThatAreWritten) {
  Buffer buffer(8 * kKiB);
  buffer.Fill(5);
  Buffer expected(8 * kKiB);
  expected.Fill(6);
  BlockIo io = Io(BlockIo::Op::kWrite, 0, {&buffer});
  io.before = [&](BlockIo&) {
    buffer.Fill(6);
    return absl::OkStatus();
  };
  ASSERT_TRUE(Run(std::move(io)).ok());
  Buffer read(8 * kKiB);
  ASSERT_TRUE(Read(0, {&read}).ok());
  EXPECT_TRUE(read.Equals(expected));
}

TEST_P(BlockFileContract, TheHookOfAWriteMayHaveOtherMemoryWritten) {
  Buffer header(4 * kKiB), payload(8 * kKiB), other(8 * kKiB), untouched(8 * kKiB);
  header.Fill(11);
  payload.Fill(12);
  untouched.Fill(12);
  other.Fill(13);
  BlockIo io = Io(BlockIo::Op::kWrite, 0, {&header, &payload});
  io.before = [&](BlockIo& transfer) {
    transfer.parts[1].iov_base = other.data();
    return absl::OkStatus();
  };
  ASSERT_TRUE(Run(std::move(io)).ok());
  Buffer read_header(4 * kKiB), read(8 * kKiB);
  ASSERT_TRUE(Read(0, {&read_header, &read}).ok());
  EXPECT_TRUE(read_header.Equals(header));
  EXPECT_TRUE(read.Equals(other));
  EXPECT_TRUE(payload.Equals(untouched));
}

TEST_P(BlockFileContract, AWriteWhoseHookFailsWritesNothing) {
  Buffer old(8 * kKiB);
  old.Fill(7);
  ASSERT_TRUE(Write(0, {&old}).ok());
  Buffer buffer(8 * kKiB);
  buffer.Fill(8);
  BlockIo io = Io(BlockIo::Op::kWrite, 0, {&buffer});
  io.before = [](BlockIo&) { return absl::AbortedError("not this one"); };
  EXPECT_EQ(Run(std::move(io)), absl::AbortedError("not this one"));
  Buffer read(8 * kKiB);
  ASSERT_TRUE(Read(0, {&read}).ok());
  EXPECT_TRUE(read.Equals(old));
}

TEST_P(BlockFileContract, TheHookOfAReadSeesTheBytesAndDecides) {
  Buffer stored(8 * kKiB);
  stored.Fill(9);
  ASSERT_TRUE(Write(0, {&stored}).ok());
  Buffer read(8 * kKiB);
  bool saw = false;
  BlockIo io = Io(BlockIo::Op::kRead, 0, {&read});
  io.after = [&](BlockIo&) {
    saw = read.Equals(stored);
    return absl::DataLossError("checksum");
  };
  EXPECT_EQ(Run(std::move(io)), absl::DataLossError("checksum"));
  EXPECT_TRUE(saw);
}

TEST_P(BlockFileContract, AReadMayLandInOtherMemoryThatIsNamedJustBefore) {
  Buffer header(4 * kKiB), payload(8 * kKiB);
  header.Fill(14);
  payload.Fill(15);
  ASSERT_TRUE(Write(0, {&header, &payload}).ok());
  Buffer read_header(4 * kKiB), read(8 * kKiB), landing(8 * kKiB), untouched(8 * kKiB);
  read.Fill(16);
  untouched.Fill(16);
  bool landed = false;
  BlockIo io = Io(BlockIo::Op::kRead, 0, {&read_header, &read});
  io.before = [&](BlockIo& transfer) {
    transfer.parts[1].iov_base = landing.data();
    return absl::OkStatus();
  };
  io.after = [&](BlockIo& transfer) {
    landed = transfer.parts[1].iov_base == landing.data() && landing.Equals(payload);
    return absl::OkStatus();
  };
  ASSERT_TRUE(Run(std::move(io)).ok());
  EXPECT_TRUE(landed);
  EXPECT_TRUE(read_header.Equals(header));
  EXPECT_TRUE(read.Equals(untouched));
}

TEST_P(BlockFileContract, AReadTouchesNothingBesideWhatItWasGiven) {
  Buffer stored(64 * kKiB);
  stored.Fill(31);
  ASSERT_TRUE(Write(0, {&stored}).ok());
  Buffer around(64 * kKiB), before(64 * kKiB);
  around.Fill(32);
  before.Fill(32);
  BlockIo io;
  io.op = BlockIo::Op::kRead;
  io.offset = 4 * kKiB;
  io.part_count = 2;
  io.parts[0] = {around.data() + 8 * kKiB, 4 * kKiB};
  io.parts[1] = {around.data() + 32 * kKiB, 12 * kKiB};
  ASSERT_TRUE(Run(std::move(io)).ok());
  std::memcpy(before.data() + 8 * kKiB, stored.data() + 4 * kKiB, 4 * kKiB);
  std::memcpy(before.data() + 32 * kKiB, stored.data() + 8 * kKiB, 12 * kKiB);
  EXPECT_TRUE(around.Equals(before));
}

// Pages that a device has pinned survive a punch: what is read into them afterwards is in no mapping any more.
TEST_P(BlockFileContract, WhatIsReadAfterAHoleWasPunchedIsInTheMapping) {
  Buffer stored(2 * kIoPartBytes);
  stored.Fill(21);
  ASSERT_TRUE(Write(0, {&stored}).ok());
  const UniqueFd arena_fd(::memfd_create("arena", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(arena_fd.get(), static_cast<off_t>(stored.size())), 0);
  const auto arena = Mapping::Shared(arena_fd.get(), stored.size(), PROT_READ | PROT_WRITE);
  ASSERT_TRUE(arena.ok()) << arena.status();
  for (int turn = 0; turn < 3; ++turn) {
    BlockIo io = Io(BlockIo::Op::kRead, 0, {});
    io.part_count = 1;
    io.parts[0] = {arena->data(), arena->size()};
    ASSERT_TRUE(Run(std::move(io)).ok());
    EXPECT_EQ(std::memcmp(arena->data(), stored.data(), stored.size()), 0) << turn;
    ASSERT_EQ(
        ::fallocate(arena_fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(stored.size())),
        0);
    EXPECT_EQ(arena->data()[5], std::byte{0});
  }
}

TEST_P(BlockFileContract, MoreTransfersThanTheDeviceTakesAtOnceKeepTheirBytesApart) {
  constexpr uint64_t kSlots = 128;
  constexpr uint64_t kSlotBytes = 128 * kKiB;
  Buffer written(kSlots * kSlotBytes);
  written.Fill(22);
  Buffer read(kSlots * kSlotBytes);
  for (const BlockIo::Op op : {BlockIo::Op::kWrite, BlockIo::Op::kRead}) {
    const Buffer& memory = op == BlockIo::Op::kWrite ? written : read;
    uint64_t ended = 0;
    uint64_t hooked = 0;  // on one thread of the device or another, but seen here once `done` has run
    std::mutex mutex;
    for (uint64_t i = 0; i < kSlots; ++i) {
      const uint64_t at = i * 37 % kSlots * kSlotBytes;
      BlockIo io;
      io.op = op;
      io.offset = at;
      io.part_count = 2;
      io.parts[0] = {memory.data() + at, 4 * kKiB};
      io.parts[1] = {memory.data() + at + 4 * kKiB, kSlotBytes - 4 * kKiB};
      (op == BlockIo::Op::kWrite ? io.before : io.after) = [&](BlockIo&) {
        const std::lock_guard lock(mutex);
        ++hooked;
        return absl::OkStatus();
      };
      io.done = [&](const absl::Status& status) { ended += status.ok() ? 1 : 0; };
      ASSERT_TRUE(file_->Submit(std::move(io)));
    }
    executor_.RunUntil([&] { return ended == kSlots; });
    EXPECT_EQ(hooked, kSlots);
  }
  EXPECT_TRUE(read.Equals(written));
  EXPECT_EQ(file_->Overdue(), 0u);
}

TEST_P(BlockFileContract, AFullQueueRefusesAndNothingOfTheRefusedRuns) {
  Reopen(4);
  std::vector<std::unique_ptr<Buffer>> buffers;
  int ended = 0;
  bool refused_ran = false;
  for (uint64_t i = 0; i < 5; ++i) {
    buffers.push_back(std::make_unique<Buffer>(4 * kKiB));
    buffers.back()->Fill(static_cast<uint32_t>(i));
    BlockIo io = Io(BlockIo::Op::kWrite, i * 4 * kKiB, {buffers.back().get()});
    io.done = [&, refused = i == 4](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ++ended;
      refused_ran = refused_ran || refused;
    };
    EXPECT_EQ(file_->Submit(std::move(io)), i < 4);
  }
  // What has ended on the disk still counts until the loop was told.
  EXPECT_EQ(file_->Pending(), 4u);
  executor_.RunUntil([&] { return ended == 4; });
  executor_.RunAll();
  EXPECT_EQ(file_->Pending(), 0u);
  EXPECT_FALSE(refused_ran);
  Buffer read(4 * kKiB);
  const Buffer zeros(4 * kKiB);
  ASSERT_TRUE(Read(16 * kKiB, {&read}).ok()) << "there is room again";
  EXPECT_TRUE(read.Equals(zeros)) << "the refused write reached the disk";
}

TEST_P(BlockFileContract, ACallbackMaySubmitTheNextTransfer) {
  Reopen(1);
  Buffer buffer(4 * kKiB);
  buffer.Fill(11);
  bool ended = false;
  BlockIo first = Io(BlockIo::Op::kWrite, 0, {&buffer});
  first.done = [&](const absl::Status&) {
    BlockIo second = Io(BlockIo::Op::kWrite, 4 * kKiB, {&buffer});
    second.done = [&](const absl::Status& status) { ended = status.ok(); };
    EXPECT_TRUE(file_->Submit(std::move(second))) << "its own place in the queue was not free";
  };
  ASSERT_TRUE(file_->Submit(std::move(first)));
  executor_.RunUntil([&] { return ended; });
}

TEST_P(BlockFileContract, ClosingFinishesWhatWasAccepted) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  size_t ended = 0;
  for (uint64_t i = 0; i < 16; ++i) {
    buffers.push_back(std::make_unique<Buffer>(64 * kKiB));
    buffers.back()->Fill(static_cast<uint32_t>(i + 100));
    BlockIo io = Io(BlockIo::Op::kWrite, i * 64 * kKiB, {buffers.back().get()});
    io.done = [&](const absl::Status& status) { ended += status.ok() ? 1 : 0; };
    ASSERT_TRUE(file_->Submit(std::move(io)));
  }
  file_.reset();
  executor_.RunAll();
  EXPECT_EQ(ended, buffers.size());
  Reopen();
  for (uint64_t i = 0; i < buffers.size(); ++i) {
    Buffer read(64 * kKiB);
    ASSERT_TRUE(file_->ReadNow(i * 64 * kKiB, read.data(), read.size()).ok());
    EXPECT_TRUE(read.Equals(*buffers[i])) << i;
  }
}

TEST_P(BlockFileContract, ASecondOpenIsRefusedUntilTheFirstIsClosed) {
  const auto second = disk_->Open(&executor_, 0);
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  file_.reset();
  EXPECT_TRUE(disk_->Open(&executor_, 0).ok());
}

TEST_P(BlockFileContract, StartUpReadsAndWritesTakeAnyMemoryAndKnowTheEnd) {
  EXPECT_EQ(file_->size_bytes(), kFileBytes);
  std::vector<char> written(8 * kKiB + 1);
  for (size_t i = 0; i < written.size(); ++i) written[i] = static_cast<char>(i * 7);
  ASSERT_TRUE(file_->WriteNow(kFileBytes - 8 * kKiB, written.data() + 1, 8 * kKiB).ok());
  ASSERT_TRUE(file_->Sync().ok());
  Reopen();
  std::vector<char> read(8 * kKiB + 1);
  ASSERT_TRUE(file_->ReadNow(kFileBytes - 8 * kKiB, read.data() + 1, 8 * kKiB).ok());
  EXPECT_EQ(std::memcmp(read.data() + 1, written.data() + 1, 8 * kKiB), 0);
  EXPECT_TRUE(absl::IsOutOfRange(file_->ReadNow(kFileBytes, read.data(), 4 * kKiB)));
  EXPECT_TRUE(absl::IsOutOfRange(file_->WriteNow(kFileBytes - 4 * kKiB, written.data(), 8 * kKiB)));
}

INSTANTIATE_TEST_SUITE_P(Kinds, BlockFileContract,
                         ::testing::Values(Kind{"Fake", [] { return std::make_unique<FakeKind>(); }},
                                           Kind{"Pool", [] { return std::make_unique<RealKind>(IoEngine::kPool); }},
                                           Kind{"Uring", [] { return std::make_unique<RealKind>(IoEngine::kUring); },
                                                true},
                                           Kind{"Auto", [] { return std::make_unique<RealKind>(std::nullopt); }},
                                           Kind{"Fair", [] { return std::make_unique<FairKind>(); }},
                                           Kind{"Faulty", [] { return std::make_unique<FaultyKind>(); }}),
                         [](const ::testing::TestParamInfo<Kind>& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace kvartal::device
