#include "operator/kube/line_framer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "operator/kube/limits.h"

namespace kvartal::kube {
namespace {

using ::testing::ElementsAre;

const std::string kStream = "{\"a\":\"\xc3\xbc\"}\r\n\n{\"b\":1}\n{\"c\":2}\nrest";

TEST(LineFramerTest, LinesComeOutWholeHoweverTheBytesWereSplit) {
  // Every pair of cuts: also within a character of two bytes, and between \r and \n.
  size_t splits = 0;
  for (size_t first = 0; first <= kStream.size(); ++first) {
    for (size_t second = first; second <= kStream.size(); ++second) {
      LineFramer framer;
      std::vector<std::string> lines;
      const auto take = [&](std::string_view line) {
        lines.emplace_back(line);
        return true;
      };
      const std::string_view all = kStream;
      ASSERT_TRUE(framer.Feed(all.substr(0, first), take));
      ASSERT_TRUE(framer.Feed(all.substr(first, second - first), take));
      ASSERT_TRUE(framer.Feed(all.substr(second), take));
      ASSERT_THAT(lines, ElementsAre("{\"a\":\"\xc3\xbc\"}", "{\"b\":1}", "{\"c\":2}")) << first << " " << second;
      ASSERT_EQ(framer.held(), 4u);
      ++splits;
    }
  }
  EXPECT_GT(splits, 300u);
}

TEST(LineFramerTest, ALineWithoutEndIsNotHeldForEver) {
  LineFramer framer;
  const auto take = [](std::string_view) { return true; };
  EXPECT_TRUE(framer.Feed(std::string(kWatchLineBytesMax, 'x'), take));
  EXPECT_FALSE(framer.Feed("x", take));
  EXPECT_LE(framer.held(), kWatchLineBytesMax);
}

TEST(LineFramerTest, WhoHasHeardEnoughHearsNoMore) {
  LineFramer framer;
  int heard = 0;
  EXPECT_TRUE(framer.Feed("a\nb\nc\n", [&](std::string_view) { return ++heard < 2; }));
  EXPECT_EQ(heard, 2);
}

}  // namespace
}  // namespace kvartal::kube
