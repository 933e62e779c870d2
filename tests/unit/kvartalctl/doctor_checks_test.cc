#include "tools/kvartalctl/doctor_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "daemon/base/units.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::ctl {
namespace {

using ::testing::HasSubstr;
using Level = Finding::Level;

TEST(CheckKernel, TooOldFailsOldWarnsNewIsFine) {
  EXPECT_EQ(CheckKernel("5.10.0-28-amd64").level, Level::kFail);
  EXPECT_EQ(CheckKernel("5.14.0").level, Level::kWarn);
  EXPECT_EQ(CheckKernel("6.1.0-18-amd64").level, Level::kWarn);
  EXPECT_EQ(CheckKernel("6.5.0").level, Level::kOk);
  EXPECT_EQ(CheckKernel("10.0").level, Level::kOk);
  EXPECT_EQ(CheckKernel("nonsense").level, Level::kWarn);
}

TEST(CheckHugePages, NeverAndDenyCarryTheCommandThatHelps) {
  EXPECT_EQ(CheckHugePages("always within_size [advise] never deny force\n").level, Level::kOk);
  for (const char* off :
       {"always within_size advise [never] deny force\n", "always within_size advise never [deny] force\n"}) {
    const Finding finding = CheckHugePages(off);
    EXPECT_EQ(finding.level, Level::kWarn);
    EXPECT_THAT(finding.fix, HasSubstr("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  }
  EXPECT_EQ(CheckHugePages("").level, Level::kWarn);
}

TEST(CheckDescriptors, AShellsHardLimitIsTooLittleForEverySession) {
  EXPECT_EQ(CheckDescriptors(4096).level, Level::kWarn);
  EXPECT_THAT(CheckDescriptors(4096).fix, HasSubstr("LimitNOFILE="));
  EXPECT_EQ(CheckDescriptors(524288).level, Level::kOk);
}

TEST(CheckNvmeKeys, SaysWhetherTheDaemonWouldTakeThem) {
  const testing::ScratchDir folder;
  const std::string path = folder.File("keys");
  EXPECT_EQ(CheckNvmeKeys(path).level, Level::kFail);
  std::ofstream(path) << "4 " << std::string(64, 'c') << "\n";
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(CheckNvmeKeys(path).detail, HasSubstr("others may read the keys"));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(CheckNvmeKeys(path).level, Level::kOk);
  EXPECT_THAT(CheckNvmeKeys(path).detail, HasSubstr("the newest is 4"));
  std::ofstream(path) << "# none\n";
  EXPECT_EQ(CheckNvmeKeys(path).level, Level::kFail);
}

TEST(CheckStatus, TellsWhichKeyIsInUseAndWhyAFileIsRefused) {
  admin::v1::StatusReply status;
  const auto encryption = [&] {
    for (const Finding& finding : CheckStatus(status)) {
      if (finding.name == "encryption") return finding;
    }
    return Finding{};
  };
  EXPECT_EQ(encryption().name, "");
  status.set_nvme_key_id(4);
  EXPECT_THAT(encryption().detail, HasSubstr("under key 4"));
  status.set_nvme_keys_error("keys: line 1: ...");
  EXPECT_EQ(encryption().level, Level::kFail);
}

TEST(CheckMemory, MoreThanTheMachineHasFails) {
  EXPECT_EQ(CheckMemory(100 * kGiB, 64 * kGiB, 60 * kGiB).level, Level::kFail);
  EXPECT_EQ(CheckMemory(62 * kGiB, 64 * kGiB, 63 * kGiB).level, Level::kWarn);
  EXPECT_EQ(CheckMemory(32 * kGiB, 64 * kGiB, 16 * kGiB).level, Level::kWarn);
  EXPECT_EQ(CheckMemory(32 * kGiB, 64 * kGiB, 60 * kGiB).level, Level::kOk);
}

TEST(CheckStatus, ASickTierFailsAndAnAbsentOneIsNotMentioned) {
  admin::v1::StatusReply status;
  admin::v1::Tier* hbm = status.add_tiers();
  hbm->set_name("hbm");
  admin::v1::Tier* nvme = status.add_tiers();
  nvme->set_name("nvme");
  nvme->set_present(true);
  nvme->set_note("offline: disk full");
  status.set_bugs(2);
  const std::vector<Finding> findings = CheckStatus(status);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].name, "daemon");
  EXPECT_EQ(findings[1].name, "tier nvme");
  EXPECT_EQ(findings[1].level, Level::kFail);
  EXPECT_THAT(findings[1].detail, HasSubstr("disk full"));
  EXPECT_EQ(findings[2].name, "bugs");
}

TEST(CheckStatus, TellsADaemonThatWasDrainedAndWhoWasDenied) {
  admin::v1::StatusReply status;
  EXPECT_EQ(CheckStatus(status).size(), 1u);
  EXPECT_EQ(CheckStatus(status)[0].level, Level::kOk);
  status.set_draining(true);
  (*status.mutable_attach_denials())["unknown_uid"] = 3;
  (*status.mutable_attach_denials())["unknown_door"] = 1;
  const std::vector<Finding> findings = CheckStatus(status);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].level, Level::kWarn);
  EXPECT_THAT(findings[0].detail, HasSubstr("it takes no stores"));
  EXPECT_EQ(findings[0].fix, "restart it");
  EXPECT_EQ(findings[1].level, Level::kWarn);
  EXPECT_THAT(findings[1].detail, HasSubstr("1 unknown_door, 3 unknown_uid"));
}

TEST(CheckStatus, ARefusedPolicyIsNotGood) {
  admin::v1::StatusReply status;
  status.set_policy_error("red.yaml:7: 'eight' is not a size");
  const std::vector<Finding> findings = CheckStatus(status);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].level, Level::kFail);
  EXPECT_THAT(findings[1].detail, HasSubstr("'eight' is not a size"));
}

TEST(CheckStatus, AnOperatorThatIsAwayIsNoRefusedPolicy) {
  admin::v1::StatusReply status;
  status.set_policy_note("no word from the operator at op:9443 for 70 s");
  const std::vector<Finding> findings = CheckStatus(status);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].level, Level::kWarn);
  EXPECT_EQ(findings[1].detail, status.policy_note());
  EXPECT_THAT(findings[1].fix, HasSubstr("certificate"));
}

TEST(CheckPolicy, AFolderOfNobodyIsWorthAWord) {
  testing::ScratchDir folder;
  config::NodeConfig config;
  config.dram_bytes = kGiB;
  config.policy_dir = folder.path();
  const Finding finding = CheckPolicy(config);
  EXPECT_EQ(finding.level, Level::kWarn) << finding.detail;
  EXPECT_THAT(finding.detail, HasSubstr("0 tenants"));
}

TEST(CheckStatus, WhatHelpsATierIsItsFix) {
  admin::v1::StatusReply status;
  admin::v1::Tier* dram = status.add_tiers();
  dram->set_present(true);
  dram->set_healthy(true);
  dram->set_note("no huge pages: slow -> as root: echo advise > file");
  const Finding finding = CheckStatus(status)[1];
  EXPECT_EQ(finding.detail, "no huge pages: slow");
  EXPECT_EQ(finding.fix, "as root: echo advise > file");
}

TEST(CheckDiskSpace, AFolderThatIsNotThereFails) {
  config::NvmeConfig nvme;
  nvme.path = "/nonexistent/kvartal/nvme.dat";
  nvme.size_bytes = kGiB;
  EXPECT_EQ(CheckDiskSpace(nvme).level, Level::kFail);
  EXPECT_EQ(CheckDirectIo(nvme).level, Level::kFail);
}

}  // namespace
}  // namespace kvartal::ctl
