#include "daemon/tier/salt_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/scratch_dir.h"

namespace kvartal::tier {
namespace {

OwnerSalt SaltOf(uint8_t owner, uint8_t byte, int64_t made_wall_ms = 1000) {
  OwnerSalt salt;
  salt.owner[0] = owner;
  salt.salt.fill(std::byte{byte});
  salt.made_wall_ms = made_wall_ms;
  return salt;
}

class SaltFileTest : public ::testing::Test {
 protected:
  SaltFile Open() const {
    absl::StatusOr<SaltFile> file = SaltFile::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  std::string Content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool Holds(uint8_t byte) const {
    return Content().find(std::string(8, static_cast<char>(byte))) != std::string::npos;
  }

  const testing::ScratchDir folder_;
  const std::string path_ = folder_.File("salts");
};

TEST_F(SaltFileTest, WhatIsPutIsThereAtTheNextOpen) {
  {
    SaltFile file = Open();
    ASSERT_TRUE(file.Put(SaltOf(1, 0x11)).ok());
    ASSERT_TRUE(file.Put(SaltOf(2, 0x22)).ok());
    ASSERT_TRUE(file.Put(SaltOf(1, 0x33, 2000)).ok());
  }
  const std::vector<OwnerSalt> salts = Open().salts();
  ASSERT_EQ(salts.size(), 2u);
  EXPECT_EQ(salts[0].salt, SaltOf(1, 0x33).salt);
  EXPECT_EQ(salts[0].made_wall_ms, 2000);
  EXPECT_EQ(salts[1].owner, SaltOf(2, 0x22).owner);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(Holds(0x11)) << "a salt that was replaced";
}

TEST_F(SaltFileTest, WhatIsForgottenIsZerosInItsPlace) {
  SaltFile file = Open();
  ASSERT_TRUE(file.Put(SaltOf(1, 0x11)).ok());
  ASSERT_TRUE(file.Put(SaltOf(2, 0x22)).ok());
  const size_t bytes = Content().size();
  ASSERT_TRUE(Holds(0x11));
  ASSERT_TRUE(file.Forget(SaltOf(1, 0).owner, 1000).ok());
  EXPECT_TRUE(Holds(0x11)) << "it was made at that moment, not before";
  ASSERT_TRUE(file.Forget(SaltOf(1, 0).owner, 1001).ok());
  EXPECT_FALSE(Holds(0x11));
  EXPECT_TRUE(Holds(0x22));
  EXPECT_EQ(Content().size(), bytes);
  EXPECT_EQ(Open().salts().size(), 1u);
  ASSERT_TRUE(file.Put(SaltOf(3, 0x44)).ok());
  EXPECT_EQ(Content().size(), bytes) << "its place is used again";
  EXPECT_TRUE(file.Forget(SaltOf(9, 0).owner, INT64_MAX).ok()) << "nothing to forget";
}

TEST_F(SaltFileTest, ADamagedRecordIsNobodysAndTheOthersStay) {
  {
    SaltFile file = Open();
    ASSERT_TRUE(file.Put(SaltOf(1, 0x11)).ok());
    ASSERT_TRUE(file.Put(SaltOf(2, 0x22)).ok());
  }
  std::fstream raw(path_, std::ios::in | std::ios::out | std::ios::binary);
  raw.seekp(64 + 20);
  raw.put('x');
  raw.close();
  SaltFile file = Open();
  ASSERT_EQ(file.salts().size(), 1u);
  EXPECT_EQ(file.salts()[0].owner, SaltOf(2, 0).owner);
  ASSERT_TRUE(file.Put(SaltOf(1, 0x55)).ok());
  EXPECT_EQ(Open().salts().size(), 2u);
}

TEST_F(SaltFileTest, AFileThatIsNotOneIsLeftAlone) {
  std::ofstream(path_) << std::string(128, 'z');
  EXPECT_TRUE(absl::IsFailedPrecondition(SaltFile::Open(path_).status()));
  EXPECT_EQ(Content(), std::string(128, 'z'));
}

TEST_F(SaltFileTest, WithoutASaltThereIsNoFileAndWhatCouldNotBeWrittenIsWrittenLater) {
  const std::string path = folder_.File("later/salts");
  absl::StatusOr<SaltFile> file = SaltFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->Save().ok());
  EXPECT_FALSE(file->Put(SaltOf(1, 0x11)).ok());
  std::filesystem::create_directory(folder_.File("later"));
  EXPECT_TRUE(file->Save().ok());
  EXPECT_EQ(SaltFile::Open(path)->salts().size(), 1u);
}

TEST_F(SaltFileTest, AFileThatWasBeingMadeIsANewOne) {
  std::ofstream(path_) << "KVSA";
  EXPECT_TRUE(Open().salts().empty());
  SaltFile file = Open();
  ASSERT_TRUE(file.Put(SaltOf(1, 0x11)).ok());
  EXPECT_EQ(Open().salts().size(), 1u);
}

}  // namespace
}  // namespace kvartal::tier
