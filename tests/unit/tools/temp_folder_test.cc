#include "tools/kvartal-bench/temp_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace kvartal::bench {
namespace {

TEST(TempFolder, IsPassableForOthersAndGoneAfterwards) {
  std::string path;
  {
    const auto folder = TempFolder::Make(::testing::TempDir());
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = (*folder)->path();
    std::filesystem::create_directories(path + "/a/b");
    std::ofstream(path + "/a/b/file") << "x";
    struct stat info{};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0755u);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TempFolder, APlaceThatCannotBeWrittenIsNamed) {
  const auto folder = TempFolder::Make("/proc");
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(std::string(folder.status().message()).find("/proc"), std::string::npos);
}

}  // namespace
}  // namespace kvartal::bench
