// The ring against a pipe: a file that gives what a test puts into it, when the test does.
#include "daemon/device/disk_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/device/uring.h"
#include "daemon/device/uring_block_file.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::device {
namespace {

using ::kvartal::testing::ManualExecutor;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kPage = kSlotAlignBytes;
constexpr int64_t kLongMs = 600'000;
constexpr int64_t kShortMs = 20;

// A page whose first touch waits for the test, in the kernel too.
class PageThatIsHeld {
 public:
  PageThatIsHeld() : fd_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))) {
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register range{};
    range.range = Range();
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    const bool registered =
        fd_.valid() && ::ioctl(fd_.get(), UFFDIO_API, &api) == 0 && ::ioctl(fd_.get(), UFFDIO_REGISTER, &range) == 0;
    if (!registered) fd_.reset();
  }
  bool valid() const { return fd_.valid(); }
  std::byte* data() const { return memory_.data(); }
  void LetGo() {
    uffdio_zeropage page{};
    page.range = Range();
    ASSERT_EQ(::ioctl(fd_.get(), UFFDIO_ZEROPAGE, &page), 0);
  }

 private:
  uffdio_range Range() const { return {reinterpret_cast<uintptr_t>(memory_.data()), memory_.size()}; }
  const Mapping memory_ = *Mapping::Anonymous(kPage);
  UniqueFd fd_;
};

class DiskRingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ProbeUring(-1).ok()) GTEST_SKIP() << ProbeUring(-1);
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    file_.emplace(UniqueFd(ends[0]), "pipe", kGiB);
    writer_.reset(ends[1]);
  }
  void Start(int64_t deadline_ms, size_t depth = 4) {
    auto ring = DiskRing::Start(&*file_, depth, deadline_ms, &executor_);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
  }
  void Put(char letter, size_t bytes) {
    const std::string text(bytes, letter);
    ASSERT_EQ(::write(writer_.get(), text.data(), bytes), static_cast<ssize_t>(bytes));
  }
  void Read(uint64_t bytes, std::optional<absl::Status>* result) {
    BlockIo io;
    io.parts[0] = {memory_.data(), bytes};
    io.done = [result](absl::Status status) { *result = std::move(status); };
    ring_->Submit(std::move(io));
  }
  absl::Status Await(std::optional<absl::Status>* result) {
    executor_.RunUntil([&] { return result->has_value(); });
    return **result;
  }
  std::vector<char> Bytes(uint64_t from, uint64_t count) const {
    const auto* bytes = reinterpret_cast<const char*>(memory_.data());
    return {bytes + from, bytes + from + count};
  }

  ManualExecutor executor_;
  Mapping memory_ = *Mapping::Anonymous(4 * kPage);
  std::optional<DiskFile> file_;
  UniqueFd writer_;
  std::unique_ptr<DiskRing> ring_;
};

// As a device does whose driver has no room for another request: the ring's own thread is not there to see it.
TEST_F(DiskRingTest, ASubmissionThatHangsIsOverdueToo) {
  PageThatIsHeld page;
  if (!page.valid()) GTEST_SKIP() << "this process may not hold up the kernel's page faults";
  Start(kShortMs);
  Put('a', kPage);
  std::optional<absl::Status> result;
  BlockIo io;
  io.parts[0] = {page.data(), kPage};
  io.done = [&](absl::Status status) { result = std::move(status); };
  ring_->Submit(std::move(io));
  while (ring_->overdue() == 0) executor_.RunAll();
  EXPECT_FALSE(result.has_value());
  page.LetGo();
  EXPECT_TRUE(Await(&result).ok()) << *result;
  EXPECT_EQ(ring_->overdue(), 0u);
  EXPECT_EQ(page.data()[0], std::byte{'a'});
}

TEST_F(DiskRingTest, AShortCompletionIsContinuedUntilAllIsThere) {
  Start(kLongMs);
  Put('a', kPage);
  std::optional<absl::Status> result;
  Read(3 * kPage, &result);
  // The pipe is empty when the ring has taken the first page.
  while (true) {
    int left = -1;
    ASSERT_EQ(::ioctl(file_->fd(), FIONREAD, &left), 0);
    if (left == 0) break;
  }
  executor_.RunAll();
  EXPECT_FALSE(result.has_value()) << "short, and told as whole";
  Put('b', 2 * kPage);
  EXPECT_TRUE(Await(&result).ok()) << *result;
  EXPECT_THAT(Bytes(0, kPage), Each('a'));
  EXPECT_THAT(Bytes(kPage, 2 * kPage), Each('b'));
}

TEST_F(DiskRingTest, AnEndInsideAPageIsAnErrorThatSaysWhere) {
  Start(kLongMs);
  Put('a', 100);
  std::optional<absl::Status> result;
  Read(kPage, &result);
  EXPECT_TRUE(absl::IsUnavailable(Await(&result))) << *result;
  EXPECT_THAT(std::string(result->message()), HasSubstr("after 100"));
}

TEST_F(DiskRingTest, AnEndOfTheFileIsAnError) {
  Start(kLongMs);
  writer_.reset();
  std::optional<absl::Status> result;
  Read(kPage, &result);
  EXPECT_TRUE(absl::IsUnavailable(Await(&result))) << *result;
  EXPECT_THAT(std::string(result->message()), HasSubstr("after 0"));
}

TEST_F(DiskRingTest, AnErrnoIsTold) {
  file_.emplace(UniqueFd(std::exchange(writer_, UniqueFd())), "pipe", kGiB);  // its writing end cannot be read
  Start(kLongMs);
  std::optional<absl::Status> result;
  Read(kPage, &result);
  EXPECT_TRUE(absl::IsUnavailable(Await(&result))) << *result;
  EXPECT_THAT(std::string(result->message()), HasSubstr("Bad file descriptor"));
}

TEST_F(DiskRingTest, ALateTransferIsCalledBackAndItsMemoryIsFreeOnlyThen) {
  Start(kShortMs);
  std::optional<absl::Status> result;
  Read(kPage, &result);
  EXPECT_TRUE(absl::IsUnavailable(Await(&result))) << *result;
  EXPECT_THAT(std::string(result->message()), HasSubstr("not done within 20 ms"));
  EXPECT_EQ(ring_->overdue(), 0u) << "it has ended";
  // Nobody reads into the memory any more: what comes now is the next transfer's.
  Put('x', kPage);
  EXPECT_THAT(Bytes(0, kPage), Each('\0'));
  std::optional<absl::Status> next;
  Read(kPage, &next);
  EXPECT_TRUE(Await(&next).ok()) << *next;
  EXPECT_THAT(Bytes(0, kPage), Each('x'));
}

TEST_F(DiskRingTest, TheDeadlineRunsFromTheDeviceNotFromTheQueue) {
  Start(kLongMs, 1);
  std::optional<absl::Status> first, second;
  Read(kPage, &first);
  Read(kPage, &second);
  Put('a', kPage);
  EXPECT_TRUE(Await(&first).ok());
  executor_.RunAll();
  EXPECT_FALSE(second.has_value());
  Put('b', kPage);
  EXPECT_TRUE(Await(&second).ok());
}

TEST_F(DiskRingTest, StoppingWaitsForWhatIsUnderWay) {
  Start(kShortMs, 1);
  std::optional<absl::Status> first, second;
  Read(kPage, &first);
  Read(kPage, &second);
  ring_.reset();  // both hang, and are called back
  executor_.RunAll();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_FALSE(first->ok());
  EXPECT_FALSE(second->ok());
}

// The word to stop may come right when the ring's thread wakes for something else, between its look at the queue and
// its look at what was completed: one write to an event that is read once. Where it comes is luck, so it comes often;
// with a pause of 20 us in that place a ring that does not hear it hangs here at once.
TEST_F(DiskRingTest, StoppingIsHeardWhateverTheThreadDoesThen) {
  constexpr int kStops = 1000;
  constexpr int64_t kNsApart = 60, kNsToSleep = 50'000;
  const SystemClock clock;
  const auto spin = [&](int64_t ns) {
    for (const int64_t until_ns = clock.MonotonicNs() + ns; clock.MonotonicNs() < until_ns;) {
    }
  };
  for (int i = 0; i < kStops; ++i) {
    Start(kLongMs);
    std::optional<absl::Status> result;
    Read(kPage, &result);
    spin(kNsToSleep);
    Put('a', kPage);
    spin(i * kNsApart);
    ring_.reset();
    executor_.RunAll();
    ASSERT_TRUE(result.has_value() && result->ok());
  }
}

TEST(UringBlockFileTest, TransfersOfMorePartsThanARingHoldsAreWhole) {
  if (!ProbeUring(-1).ok()) GTEST_SKIP() << ProbeUring(-1);
  constexpr uint64_t kTransfers = 16;
  constexpr uint64_t kBytes = 9 * kIoPartBytes;
  static_assert(kTransfers * 9 > kRingPartsMax);
  const testing::ScratchDir folder;
  ManualExecutor executor;
  auto opened = OpenBlockFile({.path = folder.File("disk"),
                               .size_bytes = kTransfers * kBytes,
                               .depth = static_cast<int>(kTransfers),
                               .engine = IoEngine::kUring},
                              &executor);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Mapping memory = *Mapping::Anonymous(kTransfers * kBytes);
  auto* const words = reinterpret_cast<uint64_t*>(memory.data());
  const auto all = [&](BlockIo::Op op) {
    uint64_t ended = 0;
    for (uint64_t i = 0; i < kTransfers; ++i) {
      BlockIo io;
      io.op = op;
      io.offset = i * kBytes;
      io.parts[0] = {memory.data() + i * kBytes, kBytes};
      io.done = [&](const absl::Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        ++ended;
      };
      ASSERT_TRUE(opened->file->Submit(std::move(io)));
    }
    executor.RunUntil([&] { return ended == kTransfers; });
  };
  for (uint64_t i = 0; i < memory.size() / 8; ++i) words[i] = i * 0x9E3779B97F4A7C15u;
  all(BlockIo::Op::kWrite);
  std::memset(memory.data(), 0, memory.size());
  all(BlockIo::Op::kRead);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < memory.size() / 8; ++i) wrong += words[i] != i * 0x9E3779B97F4A7C15u;
  EXPECT_EQ(wrong, 0u);
}

// A kernel that does not know some flags refuses them all.
unsigned unknown_flags = 0;
int InitOnOlderKernel(unsigned entries, io_uring* ring, unsigned flags) {
  return (flags & unknown_flags) != 0 ? -EINVAL : io_uring_queue_init(entries, ring, flags);
}

TEST(MakeRingTest, AnOlderKernelGetsTheFlagsItKnows) {
  if (!ProbeUring(-1).ok()) GTEST_SKIP() << ProbeUring(-1);
  constexpr unsigned kBest = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  constexpr unsigned kOurs = kBest | IORING_SETUP_COOP_TASKRUN;
  struct Step {
    unsigned unknown, used;
  };
  for (const Step& step : {Step{0, kBest}, Step{kBest, IORING_SETUP_COOP_TASKRUN}, Step{kOurs, 0}}) {
    unknown_flags = step.unknown;
    const absl::StatusOr<Ring> ring = MakeRing(4, InitOnOlderKernel);
    ASSERT_TRUE(ring.ok()) << ring.status();
    EXPECT_EQ((*ring)->flags & kOurs, step.used);
  }
}

}  // namespace
}  // namespace kvartal::device
