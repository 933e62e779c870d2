#include "daemon/device/pool_block_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/device/block_file_setup.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::device {
namespace {

using ::kvartal::testing::ManualExecutor;
using ::kvartal::testing::ScratchDir;

struct stat StatOf(const std::string& path) {
  struct stat info{};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info;
}

bool Exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

class PoolBlockFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, uint64_t size_bytes, int depth = 2) {
    BlockFileOptions options;
    options.path = path;
    options.size_bytes = size_bytes;
    options.depth = depth;
    options.engine = IoEngine::kPool;
    options.judge = judge_;
    KV_ASSIGN_OR_RETURN(OpenedBlockFile opened, OpenBlockFile(options, &executor_));
    return std::move(opened.file);
  }

  absl::Status Run(BlockFile* file, BlockIo::Op op, uint64_t offset, const Mapping& buffer) {
    std::optional<absl::Status> result;
    BlockIo io;
    io.op = op;
    io.offset = offset;
    io.parts[0] = {buffer.data(), buffer.size()};
    io.done = [&](absl::Status status) { result = std::move(status); };
    EXPECT_TRUE(file->Submit(std::move(io)));
    executor_.RunUntil([&] { return result.has_value(); });
    return *result;
  }

  static void ExpectSays(const absl::Status& status, const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      EXPECT_NE(status.ToString().find(word), std::string::npos) << '"' << word << "\" is missing in: " << status;
    }
  }

  const ScratchDir dir_;
  const std::string path_ = dir_.File("pool");
  std::function<absl::Status(std::span<const std::byte>)> judge_;
  ManualExecutor executor_;
};

TEST_F(PoolBlockFileTest, ANewFileIsPrivateAndPreallocatedInFull) {
  const auto file = Open(path_, 8 * kMiB);
  ASSERT_TRUE(file.ok()) << file.status();
  const struct stat info = StatOf(path_);
  EXPECT_EQ(info.st_size, static_cast<off_t>(8 * kMiB));
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, 8 * kMiB);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(PoolBlockFileTest, ASmallerFileGrowsAndKeepsItsBytes) {
  const std::vector<char> page(4096, 'x');
  {
    ASSERT_TRUE((*Open(path_, kMiB))->WriteNow(kMiB - 4096, page.data(), page.size()).ok());
  }
  const auto file = Open(path_, 3 * kMiB);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size_bytes(), 3 * kMiB);
  EXPECT_EQ(StatOf(path_).st_size, static_cast<off_t>(3 * kMiB));
  std::vector<char> read(4096);
  ASSERT_TRUE((*file)->ReadNow(kMiB - 4096, read.data(), read.size()).ok());
  EXPECT_EQ(read, page);
}

TEST_F(PoolBlockFileTest, AFileThatIsSomebodyElsesIsNotMadeLarger) {
  std::ofstream(path_) << std::string(100'000, 'x');
  judge_ = [](std::span<const std::byte> front) {
    EXPECT_EQ(front.size(), kNvmeForeignProbeBytes);
    EXPECT_EQ(front[99'999], std::byte{'x'});
    EXPECT_EQ(front[100'000], std::byte{0});
    return absl::FailedPreconditionError("not ours");
  };
  const auto refused = Open(path_, kMiB);
  ExpectSays(refused.status(), {path_, "not ours"});
  EXPECT_EQ(StatOf(path_).st_size, 100'000);
  judge_ = [](std::span<const std::byte>) { return absl::OkStatus(); };
  EXPECT_TRUE(Open(path_, kMiB).ok());
  EXPECT_EQ(StatOf(path_).st_size, static_cast<off_t>(kMiB));
}

TEST_F(PoolBlockFileTest, OfALargerFileTheFrontIsUsedAndNothingIsCutOff) {
  {
    ASSERT_TRUE(Open(path_, 3 * kMiB).ok());
  }
  const auto file = Open(path_, kMiB);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size_bytes(), kMiB);
  EXPECT_EQ(StatOf(path_).st_size, static_cast<off_t>(3 * kMiB));
  std::vector<char> page(4096);
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadNow(kMiB, page.data(), page.size())));
}

TEST_F(PoolBlockFileTest, ASecondDaemonIsToldWhatToDo) {
  const auto first = Open(path_, kMiB);
  ASSERT_TRUE(first.ok());
  const auto second = Open(path_, kMiB);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  ExpectSays(second.status(), {path_, "in use by another kvartald", "nvme.path"});
  EXPECT_TRUE(Exists(path_));
}

// Found by kill -9 of a daemon with transfers under way: its io_uring had the file for some milliseconds more.
TEST_F(PoolBlockFileTest, ALockThatIsAboutToGoIsWaitedFor) {
  auto first = Open(path_, kMiB);
  ASSERT_TRUE(first.ok());
  int pauses = 0;
  BlockFileOptions options;
  options.path = path_;
  options.size_bytes = kMiB;
  const auto second = SetUpBlockFile(options, [&] {
    if (++pauses == 3) first->reset();
  });
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(pauses, 3);
}

TEST_F(PoolBlockFileTest, PathsThatCannotWorkAreNamedWithTheFix) {
  const absl::Status missing = Open(dir_.File("no/such/pool"), kMiB).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  ExpectSays(missing, {"no/such/pool", "create it"});
  ExpectSays(Open(dir_.path(), kMiB).status(), {dir_.path(), "is a folder"});
  ExpectSays(Open("/dev/null", kMiB).status(), {"/dev/null", "neither a file nor a block device"});
  EXPECT_TRUE(absl::IsInvalidArgument(Open(path_, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Open(path_, kMiB + 1).status()));
  EXPECT_FALSE(Exists(path_));
}

// A limit on the size of files stands in for a disk that runs full half way.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

TEST_F(PoolBlockFileTest, AFileThatCannotHaveItsSizeIsRemovedAgain) {
  const FileSizeLimit limit(4 * kMiB);
  const auto file = Open(path_, 8 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(file.status())) << file.status();
  ExpectSays(file.status(), {path_, absl::StrCat(8 * kMiB), "removed again", "lower the NVMe capacity"});
  EXPECT_FALSE(Exists(path_));
}

TEST_F(PoolBlockFileTest, AnExistingFileThatCannotGrowStaysAsItWas) {
  const std::vector<char> page(4096, 'y');
  {
    ASSERT_TRUE((*Open(path_, 2 * kMiB))->WriteNow(0, page.data(), page.size()).ok());
  }
  {
    const FileSizeLimit limit(4 * kMiB);
    const auto file = Open(path_, 8 * kMiB);
    EXPECT_TRUE(absl::IsResourceExhausted(file.status())) << file.status();
    ExpectSays(file.status(), {"left as it was"});
  }
  EXPECT_EQ(StatOf(path_).st_size, static_cast<off_t>(2 * kMiB));
  const auto file = Open(path_, 2 * kMiB);
  std::vector<char> read(4096);
  ASSERT_TRUE((*file)->ReadNow(0, read.data(), read.size()).ok());
  EXPECT_EQ(read, page);
}

TEST_F(PoolBlockFileTest, ADiskWithoutTheRoomIsLeftAlone) {
  const std::string mount_point = dir_.File("small");
  ASSERT_EQ(::mkdir(mount_point.c_str(), 0700), 0);
  if (::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=4m") != 0) GTEST_SKIP() << "mounting needs root";
  const std::string path = mount_point + "/pool";
  const absl::Status status = Open(path, 64 * kMiB).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  ExpectSays(status, {path, absl::StrCat(64 * kMiB), absl::StrCat(4 * kMiB), "removed again"});
  EXPECT_FALSE(Exists(path));
  EXPECT_TRUE(Open(path, 2 * kMiB).ok()) << "what fits still works";
  EXPECT_EQ(::umount2(mount_point.c_str(), MNT_DETACH), 0);
}

// What the kernel says of the descriptor that has `path` open.
std::optional<bool> DescriptorIsDirect(const std::string& path) {
  std::optional<bool> direct;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != path) continue;
    direct = (::fcntl(std::stoi(entry.path().filename()), F_GETFL) & O_DIRECT) != 0;
  }
  return direct;
}

TEST_F(PoolBlockFileTest, WhatIsSaidOfDirectIoIsWhatTheDescriptorHas) {
  const auto file = Open(path_, 8 * kMiB);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(DescriptorIsDirect(path_), (*file)->direct_io());
}

TEST_F(PoolBlockFileTest, WhereDirectIoIsRefusedThePageCacheServesAndItIsTold) {
  const std::string mount_point = dir_.File("ramfs");
  ASSERT_EQ(::mkdir(mount_point.c_str(), 0700), 0);
  if (::mount("ramfs", mount_point.c_str(), "ramfs", 0, "") != 0) GTEST_SKIP() << "mounting needs root";
  const std::string path = mount_point + "/disk";
  for (const std::optional<IoEngine> engine : {std::optional(IoEngine::kPool), std::optional<IoEngine>()}) {
    BlockFileOptions options;
    options.path = path;
    options.size_bytes = 4 * kMiB;
    options.engine = engine;
    auto opened = OpenBlockFile(options, &executor_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_FALSE(opened->file->direct_io());
    EXPECT_EQ(DescriptorIsDirect(path), false);
    Mapping written = *Mapping::Anonymous(64 * kKiB), read = *Mapping::Anonymous(64 * kKiB);
    std::memset(written.data(), 0x5A, written.size());
    EXPECT_TRUE(Run(opened->file.get(), BlockIo::Op::kWrite, 64 * kKiB, written).ok());
    EXPECT_TRUE(Run(opened->file.get(), BlockIo::Op::kRead, 64 * kKiB, read).ok());
    EXPECT_EQ(std::memcmp(written.data(), read.data(), read.size()), 0);
  }
  EXPECT_EQ(::umount2(mount_point.c_str(), MNT_DETACH), 0);
}

TEST_F(PoolBlockFileTest, AFileCutShortBehindOurBackIsNeverASuccess) {
  const auto file = Open(path_, 4 * kMiB);
  ASSERT_TRUE(file.ok());
  const auto buffer = Mapping::Anonymous(2 * kMiB);
  for (const uint64_t left : {uint64_t{3 * kMiB}, 3 * kMiB - 100, 2 * kMiB + 4096, uint64_t{0}}) {
    ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(left)), 0);
    const absl::Status status = Run(file->get(), BlockIo::Op::kRead, 2 * kMiB, *buffer);
    EXPECT_TRUE(absl::IsUnavailable(status)) << left << ": " << status;
    EXPECT_FALSE((*file)->ReadNow(2 * kMiB, buffer->data(), buffer->size()).ok());
  }
}

TEST_F(PoolBlockFileTest, AWriteThatStopsHalfWayIsNeverASuccess) {
  const auto file = Open(path_, 4 * kMiB);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  const auto buffer = Mapping::Anonymous(2 * kMiB);
  const FileSizeLimit limit(2 * kMiB + 512 * kKiB);
  EXPECT_FALSE(Run(file->get(), BlockIo::Op::kWrite, 2 * kMiB, *buffer).ok());
}

TEST_F(PoolBlockFileTest, ManyTransfersAtOnceKeepTheirBytesApart) {
  constexpr uint64_t kSlots = 256;
  constexpr uint64_t kSlotBytes = 64 * kKiB;
  const auto file = Open(path_, kSlots * kSlotBytes, 8);
  ASSERT_TRUE(file.ok());
  const auto written = Mapping::Anonymous(kSlots * kSlotBytes);
  std::mt19937_64 random(5);
  auto* words = reinterpret_cast<uint64_t*>(written->data());
  for (uint64_t i = 0; i < kSlots * kSlotBytes / 8; ++i) words[i] = random();
  const auto read = Mapping::Anonymous(kSlots * kSlotBytes);
  for (const BlockIo::Op op : {BlockIo::Op::kWrite, BlockIo::Op::kRead}) {
    const Mapping& memory = op == BlockIo::Op::kWrite ? *written : *read;
    uint64_t ended = 0;
    for (uint64_t i = 0; i < kSlots; ++i) {
      const uint64_t at = i * 37 % kSlots * kSlotBytes;
      BlockIo io;
      io.op = op;
      io.offset = at;
      io.parts[0] = {memory.data() + at, kSlotBytes};
      io.done = [&](const absl::Status& status) { ended += status.ok() ? 1 : 0; };
      ASSERT_TRUE((*file)->Submit(std::move(io)));
    }
    executor_.RunUntil([&] { return ended == kSlots; });
  }
  EXPECT_EQ(std::memcmp(written->data(), read->data(), kSlots * kSlotBytes), 0);
}

// A block device made of a file, where this process may make one.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& backing) {
    const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    if (!control.valid()) return;
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return;
    path_ = absl::StrCat("/dev/loop", number);
    device_.reset(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    const UniqueFd file(::open(backing.c_str(), O_RDWR | O_CLOEXEC));
    if (!device_.valid() || ::ioctl(device_.get(), LOOP_SET_FD, file.get()) != 0) device_.reset();
  }
  ~LoopDevice() {
    if (device_.valid()) ::ioctl(device_.get(), LOOP_CLR_FD, 0);
  }
  bool valid() const { return device_.valid(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd device_;
};

TEST_F(PoolBlockFileTest, ARawDeviceIsUsedAsItIs) {
  {
    ASSERT_TRUE(Open(path_, 8 * kMiB).ok());
  }
  const LoopDevice loop(path_);
  if (!loop.valid()) GTEST_SKIP() << "no loop devices here";
  const absl::Status too_large = Open(loop.path(), 16 * kMiB).status();
  EXPECT_TRUE(absl::IsInvalidArgument(too_large)) << too_large;
  ExpectSays(too_large, {loop.path(), absl::StrCat(8 * kMiB), absl::StrCat(16 * kMiB)});
  const auto file = Open(loop.path(), 4 * kMiB);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size_bytes(), 4 * kMiB);
  const std::vector<char> page(4096, 'z');
  ASSERT_TRUE((*file)->WriteNow(kMiB, page.data(), page.size()).ok());
  std::vector<char> read(4096);
  ASSERT_TRUE((*file)->ReadNow(kMiB, read.data(), read.size()).ok());
  EXPECT_EQ(read, page);
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(loop.path(), 4 * kMiB).status()));
}

}  // namespace
}  // namespace kvartal::device
