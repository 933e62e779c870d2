// A disk that takes a write and does not end it: a file system that is frozen meanwhile. Needs root, a loop device and
// mkfs.ext4; elsewhere it is skipped.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/device/block_file.h"
#include "daemon/device/uring.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::device {
namespace {

// Confined to the thread of the test. Thawed and unmounted at the end.
class FreezableFolder {
 public:
  FreezableFolder() : folder_(dir_.File("mounted")) {
    const std::string image = dir_.File("image");
    const bool mounted =
        ::mkdir(folder_.c_str(), 0700) == 0 && Command(absl::StrCat("truncate -s 64M ", image, " && mkfs.ext4 -q ",
                                                                    image, " && mount -o loop ", image, " ", folder_));
    if (mounted) fd_.reset(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  ~FreezableFolder() {
    if (!fd_.valid()) return;
    Thaw();
    fd_.reset();
    ::umount2(folder_.c_str(), MNT_DETACH);
  }
  bool valid() const { return fd_.valid(); }
  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  bool Freeze() { return frozen_ = ::ioctl(fd_.get(), FIFREEZE, 0) == 0; }
  void Thaw() {
    if (std::exchange(frozen_, false)) ::ioctl(fd_.get(), FITHAW, 0);
  }

 private:
  static bool Command(const std::string& line) { return std::system((line + " >/dev/null 2>&1").c_str()) == 0; }

  const testing::ScratchDir dir_;
  const std::string folder_;
  UniqueFd fd_;
  bool frozen_ = false;
};

class HungDiskTest : public ::testing::TestWithParam<IoEngine> {};

TEST_P(HungDiskTest, IsToldAndKeepsTheBufferUntilItLetsGo) {
  if (GetParam() == IoEngine::kUring && !ProbeUring(-1).ok()) GTEST_SKIP() << ProbeUring(-1);
  testing::ManualExecutor executor;
  FreezableFolder folder;
  if (!folder.valid()) GTEST_SKIP() << "no file system could be made and mounted here";
  auto opened = OpenBlockFile(
      {.path = folder.File("disk"), .size_bytes = 8 * kMiB, .engine = GetParam(), .deadline_ms = 20}, &executor);
  ASSERT_TRUE(opened.ok()) << opened.status();
  BlockFile& file = *opened->file;
  const Mapping memory = *Mapping::Anonymous(2 * kMiB);
  std::optional<absl::Status> result;
  const auto write = [&] {
    BlockIo io;
    io.op = BlockIo::Op::kWrite;
    io.parts[0] = {memory.data(), memory.size()};
    io.done = [&](absl::Status status) { result = std::move(status); };
    ASSERT_TRUE(file.Submit(std::move(io)));
  };
  // Blocks that were never written would want the journal of the frozen file system.
  write();
  executor.RunUntil([&] { return result.has_value(); });
  ASSERT_TRUE(result->ok()) << *result;
  result.reset();

  if (!folder.Freeze()) GTEST_SKIP() << "this file system cannot be frozen";
  write();
  while (file.Overdue() == 0) executor.RunAll();
  EXPECT_FALSE(result.has_value()) << "the buffer was given back while the disk has it";
  EXPECT_EQ(file.Pending(), 1u);
  folder.Thaw();
  executor.RunUntil([&] { return result.has_value(); });
  EXPECT_EQ(file.Overdue(), 0u);
  EXPECT_EQ(file.Pending(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Engines, HungDiskTest, ::testing::Values(IoEngine::kUring, IoEngine::kPool),
                         [](const ::testing::TestParamInfo<IoEngine>& param) {
                           return std::string(param.param == IoEngine::kUring ? "Uring" : "Pool");
                         });

}  // namespace
}  // namespace kvartal::device
