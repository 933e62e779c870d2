// check, clock, units, ids, unique_fd, mapping.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/base/mapping.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/units.h"

namespace kvartal {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(CheckTest, AFailedCheckEndsTheProcessAndSaysWhat) {
  KV_CHECK(1 + 1 == 2);
  EXPECT_DEATH(KV_CHECK(1 + 1 == 3), "check failed at .*base_test.cc:[0-9]+: 1 \\+ 1 == 3");
}

TEST(CheckTest, ADebugCheckCostsNothingInARelease) {
  [[maybe_unused]] int evaluated = 0;
#ifdef NDEBUG
  KV_DCHECK(++evaluated == 100);
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_DEATH(KV_DCHECK(++evaluated == 100), "check failed");
#endif
}

void SeeABug() { KV_BUG("the sky is green"); }

TEST(CheckTest, ABugIsCountedEachTimeAndToldOnce) {
  ::unsetenv("KVARTAL_BUGS_FATAL");
  const uint64_t before = BugCount();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) SeeABug();
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(BugCount(), before + 3);
  const size_t first = told.find("the sky is green");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(told.find("the sky is green", first + 1), std::string::npos);
}

TEST(CheckTest, ABugIsFatalWhenTestsAskForIt) {
  EXPECT_DEATH(
      {
        ::setenv("KVARTAL_BUGS_FATAL", "1", 1);
        KV_BUG("fatal in tests");
      },
      "fatal in tests");
}

TEST(ClockTest, AManualClockMovesOnlyByHand) {
  ManualClock clock;
  const int64_t ns = clock.MonotonicNs();
  const int64_t wall = clock.WallMs();
  EXPECT_EQ(clock.MonotonicNs(), ns);
  clock.AdvanceMs(1500);
  EXPECT_EQ(clock.MonotonicNs(), ns + 1'500'000'000);
  EXPECT_EQ(clock.WallMs(), wall + 1500);
}

TEST(ClockTest, TheSystemClockNeverStepsBack) {
  const SystemClock clock;
  int64_t last = clock.MonotonicNs();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.MonotonicNs();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_GT(clock.WallMs(), int64_t{1'600'000'000'000}) << "milliseconds since 1970";
}

TEST(UnitsTest, RoundingKeepsMultiples) {
  EXPECT_EQ(RoundUp(0, 4 * kKiB), 0u);
  EXPECT_EQ(RoundUp(1, 4 * kKiB), 4096u);
  EXPECT_EQ(RoundUp(4096, 4 * kKiB), 4096u);
  EXPECT_EQ(RoundUp(4097, 4 * kKiB), 8192u);
  EXPECT_EQ(RoundDown(8191, 4 * kKiB), 4096u);
  EXPECT_EQ(kTiB, uint64_t{1} << 40);
}

TEST(IdsTest, OnlyNoneIsInvalid) {
  EXPECT_FALSE(SlotId().valid());
  EXPECT_EQ(SlotId(), SlotId::None());
  EXPECT_TRUE(SlotId(0).valid());
  EXPECT_LT(SlotId(1), SlotId(2));
}

TEST(UniqueFdTest, ClosesWhatItOwnsOnce) {
  int number;
  {
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    number = first.get();
    ASSERT_TRUE(IsOpen(number));
    UniqueFd second = std::move(first);
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), number);
  }
  EXPECT_FALSE(IsOpen(number));
  UniqueFd kept(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int released = kept.release();
  kept.reset();
  EXPECT_TRUE(IsOpen(released));
  ::close(released);
}

TEST(MappingTest, SharedMappingsOfOneFdSeeEachOther) {
  const UniqueFd fd(::memfd_create("mapping-test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), 8192), 0);
  auto writer = Mapping::Shared(fd.get(), 8192, PROT_READ | PROT_WRITE);
  auto reader = Mapping::Shared(fd.get(), 8192, PROT_READ);
  ASSERT_TRUE(writer.ok() && reader.ok());
  writer->data()[5000] = std::byte{42};
  EXPECT_EQ(reader->data()[5000], std::byte{42});
  Mapping moved = *std::move(writer);
  moved.data()[1] = std::byte{7};
  EXPECT_EQ(reader->data()[1], std::byte{7});
  EXPECT_EQ(moved.size(), 8192u);
}

TEST(MappingTest, AFailureNamesTheSize) {
  const auto mapped = Mapping::Shared(-1, 4096, PROT_READ);
  ASSERT_FALSE(mapped.ok());
  EXPECT_NE(mapped.status().ToString().find("4096"), std::string::npos);
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  KV_ASSIGN_OR_RETURN(const int half, Half(value));
  KV_RETURN_IF_ERROR(half == 0 ? absl::OutOfRangeError("zero") : absl::OkStatus());
  return Half(half);
}

TEST(StatusTest, MacrosPassFailuresUp) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_TRUE(absl::IsInvalidArgument(Quarter(3).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Quarter(6).status()));
  EXPECT_TRUE(absl::IsOutOfRange(Quarter(0).status()));
}

}  // namespace
}  // namespace kvartal
