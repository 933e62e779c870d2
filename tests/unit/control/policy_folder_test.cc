#include "daemon/control/policy_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "daemon/base/units.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::control {
namespace {

using ::testing::HasSubstr;

constexpr policy::NodeCapacity kNode = {{0, kGiB, 4 * kGiB}};

std::string PolicyText(const std::string& limit) {
  return "apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: cache, namespace: a}\n"
         "spec: {subjects: [{uid: 1}], pools: [{poolRef: p, perNode: {dram: {limit: " +
         limit + "}}}]}\n";
}

class PolicyFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("a.yaml", PolicyText("8Mi"));
    ASSERT_TRUE(folder_.Read().ok());
    ASSERT_FALSE(folder_.ReadIfChanged().has_value());
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(path_ + "/" + name, std::ios::trunc) << text;
  }
  // What the watch reads within two calls: one that sees the change, one that sees it at rest.
  std::optional<absl::StatusOr<LoadedPolicy>> Settled() {
    EXPECT_FALSE(folder_.ReadIfChanged().has_value()) << "somebody may still be writing";
    return folder_.ReadIfChanged();
  }
  static uint64_t LimitOf(const absl::StatusOr<LoadedPolicy>& loaded) {
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->table->tenants()[0].tier(TierKind::kDram).limit_bytes : 0;
  }

  testing::ScratchDir scratch_;
  const std::string path_ = scratch_.path();
  PolicyFolder folder_{path_, kNode};
};

TEST_F(PolicyFolderTest, WhatDoesNotChangeIsNotReadAgain) {
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(folder_.ReadIfChanged().has_value());
}

TEST_F(PolicyFolderTest, AnEditIsReadOnceItIsAtRest) {
  Write("a.yaml", PolicyText("16Mi"));
  auto read = Settled();
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(LimitOf(*read), 16 * kMiB);
  EXPECT_FALSE(folder_.ReadIfChanged().has_value());
}

TEST_F(PolicyFolderTest, AWriterThatGoesOnIsWaitedFor) {
  for (const char* limit : {"16Mi", "160Mi", "256Mi"}) {
    Write("a.yaml", PolicyText(limit) + "# " + limit + "\n");
    EXPECT_FALSE(folder_.ReadIfChanged().has_value());
  }
  auto read = folder_.ReadIfChanged();
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(LimitOf(*read), 256 * kMiB);
}

TEST_F(PolicyFolderTest, AConfigMapIsSwappedAsAWhole) {
  std::filesystem::remove(path_ + "/a.yaml");
  for (const char* version : {"1", "2"}) {
    std::filesystem::create_directory(path_ + "/..version_" + version);
    Write(std::string("..version_") + version + "/a.yaml", PolicyText(version + std::string("6Mi")));
  }
  std::filesystem::create_directory_symlink("..version_1", path_ + "/..data");
  std::filesystem::create_symlink("..data/a.yaml", path_ + "/a.yaml");
  auto first = Settled();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(LimitOf(*first), 16 * kMiB);
  // As the kubelet does it: the files' links stay, the folder they lead through is replaced in one step.
  std::filesystem::create_directory_symlink("..version_2", path_ + "/..data_tmp");
  std::filesystem::rename(path_ + "/..data_tmp", path_ + "/..data");
  auto second = Settled();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(LimitOf(*second), 26 * kMiB);
}

TEST_F(PolicyFolderTest, AnInvalidFileIsToldOnceAndItsRepairIsSeen) {
  Write("a.yaml", PolicyText("eight"));
  auto refused = Settled();
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(std::string(refused->status().message()),
              HasSubstr(path_ + "/a.yaml:4:75: spec.pools[0].perNode.dram.limit: 'eight' is not a size"));
  EXPECT_FALSE(folder_.ReadIfChanged().has_value());
  EXPECT_FALSE(folder_.ReadIfChanged().has_value());
  Write("a.yaml", PolicyText("8Mi"));
  auto good = Settled();
  ASSERT_TRUE(good.has_value());
  EXPECT_TRUE(good->ok());
}

TEST_F(PolicyFolderTest, AFileThatGoesAndAFolderThatGoesAreChanges) {
  std::filesystem::remove(path_ + "/a.yaml");
  auto empty = Settled();
  ASSERT_TRUE(empty.has_value());
  EXPECT_TRUE((*empty)->table->tenants().empty());
  std::filesystem::remove(path_);
  auto gone = Settled();
  ASSERT_TRUE(gone.has_value());
  EXPECT_THAT(std::string(gone->status().message()), HasSubstr("the policy folder cannot be read"));
  std::filesystem::create_directory(path_);
}

TEST_F(PolicyFolderTest, AReadByHandIsNotRepeatedByTheWatch) {
  Write("a.yaml", PolicyText("16Mi"));
  EXPECT_EQ(LimitOf(folder_.Read()), 16 * kMiB);
  EXPECT_FALSE(folder_.ReadIfChanged().has_value());
  EXPECT_FALSE(folder_.ReadIfChanged().has_value());
}

}  // namespace
}  // namespace kvartal::control
