// What a real kvartald does its disk I/O with, and what it says when that is not io_uring, or not direct.
#include <sys/mount.h>

#include "daemon/device/uring.h"
#include "tests/integration/nvme_fixture.h"
#include "tests/support/deny.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;

DaemonOptions WithIo(const std::string& io) {
  DaemonOptions options = NvmeTest::Options();
  options.nvme_io = io;
  return options;
}

class NvmeIoTest : public NvmeTest {
 protected:
  explicit NvmeIoTest(const std::string& io = "auto") : NvmeIoTest(WithIo(io)) {}
  explicit NvmeIoTest(DaemonOptions options) : NvmeTest(std::move(options)) {}

  // Stores more than memory holds, reads it back before and after a restart.
  void ExpectServes() {
    const std::vector<BlockKey> keys = Keys("io", 128);
    ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
    EXPECT_EQ(Ask(client_.get(), keys).right, keys.size());
    ASSERT_NO_FATAL_FAILURE(Stop());
    ASSERT_NO_FATAL_FAILURE(Start());
    const Census after = Ask(client_.get(), keys);
    EXPECT_EQ(after.right, keys.size());
    EXPECT_EQ(after.from_nvme, keys.size());
    ExpectBooksAgree();
  }
  std::string NvmeNote() {
    const admin::v1::StatusReply status = Status();
    for (const admin::v1::Tier& tier : status.tiers()) {
      if (tier.name() == "nvme") return tier.note();
    }
    return "no such tier";
  }
};

TEST_F(NvmeIoTest, IoUringIsUsedWhereItMayBe) {
  if (!device::ProbeUring(-1).ok()) GTEST_SKIP() << device::ProbeUring(-1);
  ASSERT_NO_FATAL_FAILURE(Start());
  if (!Status().direct_io()) GTEST_SKIP() << "no O_DIRECT here";
  EXPECT_EQ(Status().io_engine(), "io_uring");
  EXPECT_EQ(NvmeNote(), "");
  EXPECT_EQ(Metric("kvartal_io_uring "), 1);
  EXPECT_EQ(Metric("kvartal_nvme_overdue_transfers "), 0);
  EXPECT_THAT(daemon_.Ctl({"status"}).out, HasSubstr("io_uring, O_DIRECT"));
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

TEST_F(NvmeIoTest, WhereItIsDeniedThreadsServeAndEverybodyIsTold) {
  daemon_.options().in_child = [] { DenyIoUring(); };
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Status().io_engine(), "threads");
  for (const std::string& where : {NvmeNote(), daemon_.log(), daemon_.Ctl({"status"}).out,
                                   daemon_.Ctl({"doctor", "--config", daemon_.config_path()}).out}) {
    EXPECT_THAT(where, HasSubstr("a pool of threads does the I/O instead of io_uring"));
    EXPECT_THAT(where, HasSubstr("seccomp"));
  }
  EXPECT_EQ(Metric("kvartal_io_uring "), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

TEST_F(NvmeIoTest, WithLittleLockedMemoryItServesEitherWay) {
  daemon_.options().in_child = [] { LimitLockedMemory(64 * kKiB); };
  ASSERT_NO_FATAL_FAILURE(Start());
  if (!Status().direct_io()) GTEST_SKIP() << "no O_DIRECT here";
  // A kernel that counts rings as locked memory leaves the threads, and that is told.
  EXPECT_EQ(Status().io_engine() == "threads", !NvmeNote().empty()) << NvmeNote();
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

// A file system that takes no O_DIRECT, for as long as this lives.
class Ramfs {
 public:
  Ramfs() : mounted_(::mount("ramfs", folder_.path().c_str(), "ramfs", 0, "") == 0) {}
  ~Ramfs() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  Ramfs(const Ramfs&) = delete;
  Ramfs& operator=(const Ramfs&) = delete;
  bool mounted() const { return mounted_; }
  DaemonOptions WithDiskHere() const {
    DaemonOptions options = WithIo("auto");
    options.nvme_path = folder_.File("nvme.dat");
    return options;
  }

 private:
  const ScratchDir folder_;
  const bool mounted_;
};

class NvmePageCacheTest : private Ramfs, public NvmeIoTest {
 protected:
  NvmePageCacheTest() : NvmeIoTest(WithDiskHere()) {}
  using Ramfs::mounted;
};

TEST_F(NvmePageCacheTest, WhereDirectIoIsRefusedThePageCacheServesAndEverybodyIsTold) {
  if (!mounted()) GTEST_SKIP() << "mounting needs root";
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_FALSE(Status().direct_io());
  EXPECT_EQ(Metric("kvartal_direct_io "), 0);
  EXPECT_THAT(daemon_.Ctl({"status"}).out, HasSubstr("page cache"));
  for (const std::string& where :
       {NvmeNote(), daemon_.log(), daemon_.Ctl({"doctor", "--config", daemon_.config_path()}).out})
    EXPECT_THAT(where, HasSubstr("takes no O_DIRECT"));
  ASSERT_NO_FATAL_FAILURE(ExpectServes());
}

class NvmeInsistingTest : public NvmeIoTest {
 protected:
  NvmeInsistingTest() : NvmeIoTest("uring") {}
};
class NvmePoolTest : public NvmeIoTest {
 protected:
  NvmePoolTest() : NvmeIoTest("pool") {}
};

TEST_F(NvmeInsistingTest, WhoInsistsOnIoUringIsToldWhyThereIsNoTier) {
  daemon_.options().in_child = [] { DenyIoUring(); };
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_THAT(NvmeNote(), HasSubstr("nvme.io: auto"));
  EXPECT_THAT(NvmeNote(), HasSubstr("seccomp"));
}

TEST_F(NvmePoolTest, ItCanBeAskedFor) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Status().io_engine(), "threads");
  EXPECT_EQ(NvmeNote(), "") << "it was asked for";
}

}  // namespace
}  // namespace kvartal::testing
