// The contract of block files again in a process that may not use io_uring, and in one that may lock next to no memory.
#include <asm/unistd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>

#include "daemon/base/units.h"
#include "daemon/device/block_file.h"
#include "daemon/device/uring.h"
#include "tests/support/deny.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::device {
namespace {

using ::testing::HasSubstr;

// Runs the contract suite in a process that `become_poor` has prepared, and sees that it passed and was not empty.
void ExpectContractHolds(const std::string& kinds, const std::function<void()>& become_poor) {
  const testing::ScratchDir folder;
  const std::string suite =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string() + "/device_contract_test";
  const std::string filter = "--gtest_filter=" + kinds;
  const std::string output = "--gtest_output=json:" + folder.File("result");
  const pid_t pid = ::fork();
  if (pid == 0) {
    become_poor();
    ::execl(suite.c_str(), suite.c_str(), filter.c_str(), output.c_str(), "--gtest_brief=1",
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  std::ifstream file(folder.File("result"));
  const std::string result{std::istreambuf_iterator<char>(file), {}};
  constexpr std::string_view kTests = "\"tests\": ";
  const size_t tests = result.find(kTests);
  ASSERT_NE(tests, std::string::npos);
  EXPECT_GT(std::stoi(result.substr(tests + kTests.size())), 20);
}

absl::StatusOr<OpenedBlockFile> Open(const testing::ScratchDir& folder, std::optional<IoEngine> engine,
                                     Executor* executor) {
  return OpenBlockFile({.path = folder.File("disk"), .size_bytes = kMiB, .engine = engine}, executor);
}

// First: what other processes have locked is given back some time after their end.
TEST(PoorProcess, TheRingsOfADiskFitSixtyFourKiBOfLockedMemory) {
  if (!ProbeUring(-1).ok()) GTEST_SKIP() << ProbeUring(-1);
  const testing::ScratchDir folder;
  const pid_t pid = ::fork();
  if (pid == 0) {
    testing::LimitLockedMemory(64 * kKiB);
    testing::ManualExecutor executor;
    const auto opened =
        OpenBlockFile({.path = folder.File("disk"), .size_bytes = kMiB, .engine = std::nullopt}, &executor);
    ::_exit(opened.ok() && (opened->engine == IoEngine::kUring || !opened->file->direct_io()) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the pool serves: " << status;
}

TEST(PoorProcess, TheContractHoldsWhereIoUringIsDenied) {
  ExpectContractHolds("*/Auto:*/Fair", [] { testing::DenyIoUring(); });
}

TEST(PoorProcess, TheContractHoldsWithSixtyFourKiBOfLockedMemory) {
  ExpectContractHolds("*/Auto:*/Fair", [] { testing::LimitLockedMemory(64 * kKiB); });
}

TEST(PoorProcess, ADeniedRingIsNamedWithWhatWouldHelpAndThePoolServes) {
  testing::ManualExecutor executor;
  const testing::ScratchDir folder;
  absl::StatusOr<OpenedBlockFile> automatic, insisting;
  // The filter stays on the thread that asked for it.
  std::thread([&] {
    testing::DenyIoUring();
    insisting = Open(folder, IoEngine::kUring, &executor);
    automatic = Open(folder, std::nullopt, &executor);
  }).join();
  EXPECT_TRUE(absl::IsUnimplemented(insisting.status())) << insisting.status();
  EXPECT_THAT(std::string(insisting.status().message()), HasSubstr("nvme.io: auto"));
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->engine, IoEngine::kPool);
  EXPECT_THAT(automatic->note, HasSubstr("threads"));
  EXPECT_THAT(automatic->note, HasSubstr("io_uring_setup")) << "what the seccomp profile has to pass";
}

// The last of them is called by the disk's own thread.
TEST(PoorProcess, WhichOfItsCallsIsDeniedThePoolServes) {
  for (const uint32_t call : {__NR_io_uring_setup, __NR_io_uring_enter, __NR_io_uring_register}) {
    testing::ManualExecutor executor;
    const testing::ScratchDir folder;
    absl::StatusOr<OpenedBlockFile> opened;
    std::thread([&] {
      testing::Deny({call});
      opened = Open(folder, std::nullopt, &executor);
    }).join();
    ASSERT_TRUE(opened.ok()) << call << ": " << opened.status();
    EXPECT_EQ(opened->engine, IoEngine::kPool) << call;
  }
}

TEST(PoorProcess, WhereNothingIsDeniedARingServesWithoutANote) {
  if (!ProbeUring(-1).ok()) GTEST_SKIP() << ProbeUring(-1);
  testing::ManualExecutor executor;
  const testing::ScratchDir folder;
  {
    const auto opened = Open(folder, std::nullopt, &executor);
    ASSERT_TRUE(opened.ok()) << opened.status();
    if (!opened->file->direct_io()) GTEST_SKIP() << "no O_DIRECT here";
    EXPECT_EQ(opened->engine, IoEngine::kUring);
    EXPECT_EQ(opened->note, "");
  }
  const auto pool = Open(folder, IoEngine::kPool, &executor);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(pool->engine, IoEngine::kPool);
  EXPECT_EQ(pool->note, "") << "it was asked for";
}

TEST(WhyNoRing, EachReasonCarriesWhatHelps) {
  EXPECT_THAT(WhyNoRing(ENOSYS, ""), HasSubstr("Linux 5.11"));
  EXPECT_THAT(WhyNoRing(EPERM, "0"), HasSubstr("seccomp"));
  EXPECT_THAT(WhyNoRing(EACCES, ""), HasSubstr("seccomp"));
  EXPECT_THAT(WhyNoRing(EPERM, "2"), HasSubstr("sysctl kernel.io_uring_disabled=0"));
  EXPECT_THAT(WhyNoRing(ENOMEM, "0"), HasSubstr("memlock"));
  EXPECT_THAT(WhyNoRing(EMFILE, "0"), HasSubstr("Too many open files"));
}

}  // namespace
}  // namespace kvartal::device
