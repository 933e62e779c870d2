#include "tools/kvartal-bench/progress.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvartal::bench {
namespace {

std::string AllOf(std::FILE* file) {
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  return text;
}

TEST(Progress, ABarFillsAndNeverOverflows) {
  EXPECT_EQ(BarText(0, 10, 5), "[.....]");
  EXPECT_EQ(BarText(5, 10, 4), "[##..]");
  EXPECT_EQ(BarText(10, 10, 4), "[####]");
  EXPECT_EQ(BarText(20, 10, 4), "[####]");
  EXPECT_EQ(BarText(1, 0, 2), "[..]");
}

TEST(Progress, AFileGetsOneLineATenth) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    Progress progress("work", 1000, file);
    for (uint64_t done = 1; done <= 1000; ++done) progress.Update(done);
  }
  const std::string text = AllOf(file);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_NE(text.find("work 100%"), std::string::npos) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  std::fclose(file);
}

}  // namespace
}  // namespace kvartal::bench
