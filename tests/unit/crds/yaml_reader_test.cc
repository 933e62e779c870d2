#include "crds/yaml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::crds {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(const std::string& text) {
  const auto documents = ReadYaml(text, "a.yaml");
  return documents.ok() ? "accepted" : std::string(documents.status().message());
}

std::string Repeat(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

TEST(YamlReaderTest, KeepsWhereEveryValueStands) {
  const auto documents = ReadYaml("a: 1\nb:\n- x\n-   'y'\n", "a.yaml");
  ASSERT_TRUE(documents.ok()) << documents.status();
  ASSERT_EQ(documents->size(), 1u);
  const YamlNode* list = (*documents)[0].Find("b");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 2u);
  EXPECT_EQ(list->items[1].text, "y");
  EXPECT_TRUE(list->items[1].quoted);
  EXPECT_FALSE(list->items[0].quoted);
  EXPECT_EQ(list->items[1].position.line, 4);
  EXPECT_EQ(list->items[1].position.column, 5);
  EXPECT_EQ((*documents)[0].entries[1].position.line, 2);
  EXPECT_EQ((*documents)[0].Find("c"), nullptr);
}

TEST(YamlReaderTest, CountsDocuments) {
  EXPECT_EQ(ReadYaml("", "a")->size(), 0u);
  EXPECT_EQ(ReadYaml("# nothing\n", "a")->size(), 0u);
  EXPECT_EQ(ReadYaml("a: 1\n---\nb: 2\n", "a")->size(), 2u);
  EXPECT_EQ(ReadYaml("---\n---\na: 1\n---\n~\n---\n", "a")->size(), 1u) << "empty documents are none";
}

TEST(YamlReaderTest, RefusesWhatCouldGrowBeyondItsText) {
  EXPECT_THAT(ErrorOf("a: &x 1\nb: *x\n"), HasSubstr("anchors (&name) are not allowed"));
  EXPECT_THAT(ErrorOf("a: &x [1]\n"), StartsWith("a.yaml:1:"));
  EXPECT_THAT(ErrorOf("b: *x\n"), HasSubstr("a.yaml:1:4"));
  // The "billion laughs": nine levels of nine references.
  std::string bomb = "a0: &a0 [l, l, l, l, l, l, l, l, l]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string from = absl::StrCat("*a", i - 1, ", ");
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [", Repeat(from, 8), from, "]\n");
  }
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("are not allowed"));
}

TEST(YamlReaderTest, RefusesTagsAndOddKeys) {
  EXPECT_THAT(ErrorOf("a: !!int '5'\n"), HasSubstr("the tag 'tag:yaml.org,2002:int' is not allowed"));
  EXPECT_THAT(ErrorOf("a: !python/object x\n"), HasSubstr("is not allowed"));
  EXPECT_THAT(ErrorOf("? [a, b]\n: 1\n"), HasSubstr("a key must be a single word"));
  EXPECT_THAT(ErrorOf("? {a: b}\n: 1\n"), HasSubstr("a key must be a single word"));
  EXPECT_THAT(ErrorOf(": 1\n"), HasSubstr("a key is missing"));
}

TEST(YamlReaderTest, RefusesDuplicateKeysAndNamesBothPlaces) {
  EXPECT_EQ(ErrorOf("a: 1\nb: 2\na: 3\n"), "a.yaml:3:1: duplicate key 'a'; it stands already at 1:1");
  EXPECT_THAT(ErrorOf("x: {k: 1, \"k\": 2}\n"), HasSubstr("duplicate key 'k'"));
  EXPECT_EQ(ErrorOf("x: {k: 1}\ny: {k: 2}\n"), "accepted") << "the same key in two mappings";
  EXPECT_EQ(ErrorOf("k: 1\n---\nk: 2\n"), "accepted") << "the same key in two documents";
}

TEST(YamlReaderTest, RefusesDeepNesting) {
  EXPECT_EQ(ErrorOf(Repeat("[", kYamlDepthMax) + Repeat("]", kYamlDepthMax)), "accepted");
  EXPECT_THAT(ErrorOf(Repeat("[", kYamlDepthMax + 1) + Repeat("]", kYamlDepthMax + 1)),
              HasSubstr("nested deeper than 32"));
  for (const char* opening : {"[", "{a: ", "- ", "? ", "[{", "- [", "{? "}) {
    EXPECT_NE(ErrorOf(Repeat(opening, 100000)), "accepted") << opening;
  }
  std::string indented;
  for (size_t i = 0; i < 1000; ++i) indented += std::string(i, ' ') + "a:\n";
  EXPECT_THAT(ErrorOf(indented), HasSubstr("nested deeper than 32"));
}

TEST(YamlReaderTest, RefusesTooMuch) {
  EXPECT_THAT(ErrorOf(std::string(kYamlBytesMax + 1, '#')), HasSubstr("a file may have at most 1048576"));
  EXPECT_THAT(ErrorOf(absl::StrCat("[", Repeat("1,", kYamlNodesMax + 1), "]")), HasSubstr("more than 65536 values"));
}

TEST(YamlReaderTest, RefusesWhatIsNotUtf8Text) {
  const std::string not_text[] = {std::string("a: \0b", 5),
                                  "a: \x01",
                                  "a: \xff",
                                  "a: \xc3",
                                  "a: \xc0\xaf",
                                  "a: \xed\xa0\x80",
                                  "a: \xf5\x80\x80\x80",
                                  "\xff\xfe"
                                  "a",
                                  "a: \x7f",
                                  "a: \xe0\x80\x80"};
  for (const std::string& text : not_text) EXPECT_THAT(ErrorOf(text), HasSubstr("not printable UTF-8 text"));
  EXPECT_THAT(ErrorOf("ok: 1\nb: \xff"), StartsWith("a.yaml:2:4: "));
  EXPECT_EQ(ErrorOf("a: \u00e9\u20ac\U0001F600\n"), "accepted");
  EXPECT_EQ(ErrorOf("\ufeffa: 1\r\nb: 2\r\n"), "accepted") << "byte order mark and CRLF";
}

TEST(YamlReaderTest, SaysWhenATabIsToBlame) {
  EXPECT_THAT(ErrorOf("a:\n\tb: 1\n"), HasSubstr("the line is indented with a tab"));
  EXPECT_THAT(ErrorOf("a:\n  b: 1\n \tc: 1\n"), HasSubstr("a.yaml:3:"));
  EXPECT_EQ(ErrorOf("a: 1\t# tabs are fine here\n"), "accepted");
}

TEST(YamlReaderTest, BrokenYamlIsAnErrorWithItsPlace) {
  for (const char* text : {"a: [1, 2", "a: 'x", "a: b: c", "a: \"\\q\"", "]", "a: {b", "%YAML 9.9\n---\na: 1", "@", "`",
                           "- a\nb: 1", "&", "*", "a: %"}) {
    EXPECT_THAT(ErrorOf(text), StartsWith("a.yaml:")) << text;
  }
}

TEST(YamlReaderTest, WhatFollowsADocumentNeedsASeparator) {
  EXPECT_THAT(ErrorOf("- a\nb: 1\n"), HasSubstr("a.yaml:2:1: not valid YAML: does not belong to what stands above"));
  EXPECT_THAT(ErrorOf("a: 1\n---\nb: 1\n---\n- c\nd: 1\n"), StartsWith("a.yaml:6:1: "));
  for (const char* text :
       {"a: 1\n---\nb: 1\n", "--- {a: 1}\n--- {b: 1}\n", "---\n---\n---\na: 1\n", "a: 1\n---\n# none\n---\nb: 1\n",
        "a: 1\n...\n---\nb: 1\n", "--- x\n--- y", "---\na: 1\n---", "---\r\na: 1\r\n---\r\nb: 1\r\n"}) {
    EXPECT_EQ(ErrorOf(text), "accepted") << text;
  }
}

TEST(YamlReaderTest, ReadsFilesAndSaysWhyNot) {
  const kvartal::testing::ScratchDir scratch;
  const std::string folder = scratch.path();
  const std::string path = scratch.File("yaml_reader_test.yaml");
  std::ofstream(path) << "a: 1\n";
  EXPECT_EQ(*ReadYamlFile(path), "a: 1\n");
  std::ofstream(path) << std::string(kYamlBytesMax, 'x');
  EXPECT_TRUE(ReadYamlFile(path).ok());
  std::ofstream(path) << std::string(kYamlBytesMax + 1, 'x');
  EXPECT_THAT(ReadYamlFile(path).status().message(), HasSubstr("at most 1048576 bytes"));
  EXPECT_EQ(ReadYamlFile(folder + "/absent.yaml").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ReadYamlFile(folder).status().message(), HasSubstr("is not a regular file"));
  EXPECT_THAT(ReadYamlFile("/dev/zero").status().message(), HasSubstr("is not a regular file"));
}

TEST(YamlReaderTest, TextInErrorsIsEscapedAndCut) {
  EXPECT_EQ(Shown("a\nb"), "'a\\nb'");
  EXPECT_EQ(Shown(std::string(64, 'x')), absl::StrCat("'", std::string(64, 'x'), "'"));
  EXPECT_EQ(Shown(std::string(65, 'x')), absl::StrCat("'", std::string(64, 'x'), "...'"));
  EXPECT_EQ(Shown(std::string(63, 'x') + "\u20ac"), absl::StrCat("'", std::string(63, 'x'), "...'"))
      << "never half a character";
}

}  // namespace
}  // namespace kvartal::crds
