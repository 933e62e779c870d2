// A real kvartald with two disks: blocks go to both, one that is away costs the other nothing, and is back whole.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/integration/nvme_fixture.h"

namespace kvartal::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class NvmeDisksTest : public NvmeTest {
 protected:
  static DaemonOptions TwoDisks() {
    DaemonOptions options;
    options.manifests = TenantManifest("own", absl::StrCat("uid: ", ::getuid()), "4Mi", "128Mi");
    options.more_config = "nvme:\n- {path: disk0/nvme.dat, size: 64Mi}\n- {path: disk1/nvme.dat, size: 64Mi}\n";
    return options;
  }
  NvmeDisksTest() : NvmeTest(TwoDisks()) {
    for (const char* disk : {"disk0", "disk1"}) std::filesystem::create_directories(Folder(disk));
  }
  std::string Folder(const std::string& name) const { return daemon_.folder() + "/" + name; }
  // As when its file system is not mounted, and when it is again.
  void TakeAway(const std::string& disk) { std::filesystem::rename(Folder(disk), Folder(disk + ".away")); }
  void BringBack(const std::string& disk) { std::filesystem::rename(Folder(disk + ".away"), Folder(disk)); }
};

TEST_F(NvmeDisksTest, BlocksLieOnBothAndOneThatIsAwayCostsTheOtherNothing) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("two", 192);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  admin::v1::StatusReply status = Status();
  ASSERT_THAT(status.disks(), SizeIs(2));
  for (const admin::v1::Disk& disk : status.disks()) {
    EXPECT_EQ(disk.state(), "healthy") << disk.path();
    EXPECT_GT(disk.used_bytes(), 0u) << disk.path();
  }
  EXPECT_EQ(status.disks(0).used_bytes() + status.disks(1).used_bytes(),
            admin::TierOf(Tenant(), "nvme").charged_bytes());
  const uint64_t on_first = status.disks(0).used_bytes() / (kNvmeTestBlockBytes + kNvmeHeaderBytes);
  ASSERT_NO_FATAL_FAILURE(Stop());

  TakeAway("disk1");
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(daemon_.ReadyWord("nvme_disks_absent"), "1");
  status = Status();
  ASSERT_THAT(status.disks(), SizeIs(2));
  EXPECT_EQ(status.disks(1).state(), "absent");
  EXPECT_THAT(status.disks(1).note(), HasSubstr("offline since the start of the daemon"));
  const std::string doctor = daemon_.Ctl({"doctor"}).out;
  EXPECT_THAT(doctor, HasSubstr(absl::StrCat("disk ", Folder("disk0/nvme.dat"))));
  EXPECT_THAT(doctor, HasSubstr(absl::StrCat("disk ", Folder("disk1/nvme.dat"))));
  EXPECT_THAT(daemon_.Ctl({"status"}).out, HasSubstr("absent"));
  Until("the disks in the metrics", [this] { return Metric("kvartal_nvme_disk_state{disk=") == 3; });
  Census census = Ask(client_.get(), keys);
  EXPECT_EQ(census.right, on_first);
  EXPECT_EQ(census.missed, keys.size() - on_first);
  EXPECT_EQ(census.wrong_bytes, 0u);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), Keys("meanwhile", 32)));
  ExpectBooksAgree();
  ASSERT_NO_FATAL_FAILURE(Stop());

  BringBack("disk1");
  ASSERT_NO_FATAL_FAILURE(Start());
  census = Ask(client_.get(), keys);
  EXPECT_EQ(census.right, keys.size());
  EXPECT_EQ(census.wrong_bytes, 0u);
  EXPECT_EQ(Ask(client_.get(), Keys("meanwhile", 32)).right, 32u);
  ExpectBooksAgree();
}

TEST_F(NvmeDisksTest, ALostDiskIsReplacedByAnEmptyOneAndFilledAgain) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<BlockKey> keys = Keys("replaced", 64);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), keys));
  const uint64_t on_second = Status().disks(1).used_bytes() / (kNvmeTestBlockBytes + kNvmeHeaderBytes);
  ASSERT_NO_FATAL_FAILURE(Stop());

  std::filesystem::remove_all(Folder("disk0"));
  std::filesystem::create_directories(Folder("disk0"));
  ASSERT_NO_FATAL_FAILURE(Start());
  const Census census = Ask(client_.get(), keys);
  EXPECT_EQ(census.right, on_second);
  EXPECT_EQ(census.wrong_bytes, 0u);
  ASSERT_NO_FATAL_FAILURE(StoreDurably(client_.get(), Keys("again", 64)));
  EXPECT_GT(Status().disks(0).used_bytes(), 0u);
  ExpectBooksAgree();
}

TEST_F(NvmeDisksTest, TheSameFileUnderTwoNamesIsRefusedWithItsPlaceInTheConfiguration) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Stop());
  std::filesystem::remove(Folder("disk1/nvme.dat"));
  std::filesystem::create_hard_link(Folder("disk0/nvme.dat"), Folder("disk1/nvme.dat"));
  const ExitState state = daemon_.StartAndWaitForEnd();
  EXPECT_FALSE(state.exited && state.code == 0);
  EXPECT_THAT(daemon_.log(), HasSubstr("nvme[1].path: "));
  EXPECT_THAT(daemon_.log(), HasSubstr("is the file of nvme[0]"));
}

}  // namespace
}  // namespace kvartal::testing
