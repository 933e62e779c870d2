#include "daemon/cipher/node_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/vm_flags.h"

namespace kvartal::cipher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kOnes(64, '1');
const std::string kTwos(64, '2');

auto Parse(const std::string& text) { return NodeKeys::Parse(std::as_bytes(std::span(text))); }

TEST(NodeKeysTest, TheHighestNumberIsTheNewestWhateverTheOrder) {
  const auto keys = Parse(absl::StrCat("# of this node\n\n12 ", kTwos, "\n  3\t", kOnes, "\r\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*keys)->size(), 2u);
  EXPECT_EQ((*keys)->newest(), 12u);
  ASSERT_EQ((*keys)->Find(3).size(), kKeyBytes);
  EXPECT_EQ((*keys)->Find(3)[31], std::byte{0x11});
  EXPECT_EQ((*keys)->Find(12)[0], std::byte{0x22});
  EXPECT_TRUE((*keys)->Find(4).empty());
  EXPECT_TRUE((*keys)->Find(0).empty());
}

TEST(NodeKeysTest, NoKeyIsASetOfNone) {
  const auto keys = Parse("# all were withdrawn\n");
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ((*keys)->size(), 0u);
  EXPECT_EQ((*keys)->newest(), 0u);
}

TEST(NodeKeysTest, WhatIsNoKeyIsRefusedByItsLineAndNeverShown) {
  const std::string secret = "c0ffee" + std::string(56, 'a');  // two digits short
  for (const std::string& line : {"1 " + secret, "0 " + kOnes, "4294967296 " + kOnes, "one " + kOnes, kOnes,
                                  "1 " + kOnes + " 2", "1 " + std::string(64, 'g')}) {
    const auto keys = Parse("# first\n" + line + "\n");
    ASSERT_FALSE(keys.ok()) << line;
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr("line 2: "));
    EXPECT_THAT(std::string(keys.status().message()), Not(HasSubstr("c0ffee")));
  }
  EXPECT_THAT(std::string(Parse("7 " + kOnes + "\n7 " + kTwos).status().message()), HasSubstr("key 7 is there twice"));
  std::string many;
  for (size_t i = 1; i <= kNodeKeysMax + 1; ++i) absl::StrAppend(&many, i, " ", kOnes, "\n");
  EXPECT_FALSE(Parse(many).ok());
}

TEST(NodeKeysTest, EqualMeansNumbersAndBytes) {
  const auto keys = *Parse("1 " + kOnes);
  EXPECT_TRUE(keys->Equals(**Parse("# the same\n1 " + kOnes + "\n")));
  EXPECT_FALSE(keys->Equals(**Parse("1 " + kTwos)));
  EXPECT_FALSE(keys->Equals(**Parse("2 " + kOnes)));
  EXPECT_FALSE(keys->Equals(**Parse("")));
}

TEST(NodeKeysTest, AFileThatOthersMayReadIsRefused) {
  const testing::ScratchDir folder;
  const std::string path = folder.File("keys");
  std::ofstream(path) << "1 " << kOnes << "\n";
  for (const mode_t mode : {0600, 0400, 0640, 0440}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(NodeKeys::Read(path).ok()) << mode;
  }
  for (const mode_t mode : {0604, 0644, 0660, 0602, 0601}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const auto keys = NodeKeys::Read(path);
    EXPECT_TRUE(absl::IsPermissionDenied(keys.status())) << mode;
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr("chmod 0600 " + path));
  }
  EXPECT_TRUE(absl::IsNotFound(NodeKeys::Read(folder.File("absent")).status()));
  EXPECT_THAT(std::string(NodeKeys::Read(folder.path()).status().message()), HasSubstr("is not a file"));
  std::ofstream(path) << std::string(kNodeKeysBytesMax + 1, '#');
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_FALSE(NodeKeys::Read(path).ok());
}

TEST(NodeKeysTest, AFileThatIsBeingWrittenInPlaceTakesNoKeysAway) {
  const testing::ScratchDir folder;
  const std::string path = folder.File("keys");
  std::ofstream(path).flush();
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(NodeKeys::Read(path).status().message()), HasSubstr(path + ": is empty"));
  std::ofstream(path) << "#\n";
  EXPECT_TRUE(NodeKeys::Read(path).ok());
}

TEST(SecretMemoryTest, StaysOutOfCoreFilesSwapAndForkedProcesses) {
  const SecretMemory memory(40);
  const std::string flags = testing::VmFlagsOf(memory.bytes().data());
  EXPECT_THAT(flags, HasSubstr(" dd "));
  EXPECT_THAT(flags, HasSubstr(" wf "));
  const absl::StatusOr<Mapping> probe = Mapping::Anonymous(kSlotAlignBytes);
  ASSERT_TRUE(probe.ok());
  EXPECT_EQ(flags.find(" lo ") != std::string::npos, probe->KeepFromSwap()) << flags;
}

TEST(SecretMemoryTest, IsZerosAtFirstAndMovesWithItsBytes) {
  SecretMemory memory(40);
  ASSERT_EQ(memory.bytes().size(), 40u);
  for (const std::byte byte : memory.bytes()) EXPECT_EQ(byte, std::byte{0});
  memory.bytes()[39] = std::byte{7};
  SecretMemory moved = std::move(memory);
  EXPECT_EQ(moved.bytes()[39], std::byte{7});
  EXPECT_TRUE(memory.bytes().empty());  // NOLINT(bugprone-use-after-move): this is what is promised
}

}  // namespace
}  // namespace kvartal::cipher
