#include "crds/field_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"

namespace kvartal::crds {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The findings `read` leaves on `text`.
std::string FindingsOn(const std::string& text, absl::FunctionRef<void(FieldReader&)> read) {
  const auto documents = ReadYaml(text, "a.yaml");
  if (!documents.ok() || documents->size() != 1) return "not one document";
  Findings findings("a.yaml");
  {
    FieldReader reader(documents->front(), "spec", &findings);
    read(reader);
  }
  return std::string(findings.status().message());
}

TEST(FieldReaderTest, UnknownKeysNameWhatIsAllowed) {
  const std::string error = FindingsOn("hbm: 1\nfoo: 2\n", [](FieldReader& reader) {
    reader.Integer("hbm", 0, 9);
    reader.Bool("other");
    reader.Ignore({"status"});
  });
  EXPECT_EQ(error, "a.yaml:2:1: spec: unknown key 'foo'; allowed: hbm, other");
}

TEST(FieldReaderTest, FindingsComeInFileOrder) {
  const std::string error = FindingsOn("b: x\na: y\n", [](FieldReader& reader) {
    reader.Integer("a", 0, 9);
    reader.Integer("b", 0, 9);
  });
  EXPECT_EQ(error,
            "a.yaml:1:4: spec.b: 'x' is not an integer; allowed: integers 0 to 9\n"
            "a.yaml:2:4: spec.a: 'y' is not an integer; allowed: integers 0 to 9");
}

TEST(FieldReaderTest, FindingsAreBoundedAndTheRestCounted) {
  std::string text;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "k", i, ": 1\n");
  const std::string error = FindingsOn(text, [](FieldReader&) {});
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), static_cast<int>(kYamlFindingsMax));
  EXPECT_THAT(error, HasSubstr("a.yaml: and 84 more"));
}

TEST(FirstFindings, CutsAfterTheFirstAndCountsTheRest) {
  std::string text = "0";
  for (size_t i = 1; i < kYamlFindingsMax; ++i) absl::StrAppend(&text, "\n", i);
  EXPECT_EQ(FirstFindings(text), text) << "as many as may be told";
  EXPECT_EQ(FirstFindings(""), "");
  const std::string more = FirstFindings(absl::StrCat(text, "\nx\ny"));
  EXPECT_EQ(more.rfind(text + "\nand 2 more", 0), 0u) << more;
}

TEST(FieldReaderTest, IntegersAreExactlyIntegers) {
  for (const char* good : {"0", "7", "-7", "9223372036854775807", "-9223372036854775808"}) {
    EXPECT_EQ(FindingsOn(absl::StrCat("n: ", good),
                         [](FieldReader& r) { EXPECT_TRUE(r.Integer("n", INT64_MIN, INT64_MAX)); }),
              "")
        << good;
  }
  for (const char* bad : {"1.0", "1e3", "0x10", "0o7", "010", "-01", "+1", "'1'", "true", "one", "1_0", "[1]", "{a: 1}",
                          "~", "''", "9223372036854775808", "-9223372036854775809"}) {
    EXPECT_THAT(FindingsOn(absl::StrCat("n: ", bad),
                           [](FieldReader& r) { EXPECT_FALSE(r.Integer("n", INT64_MIN, INT64_MAX)); }),
                HasSubstr("a.yaml:1:4: spec.n: "))
        << bad;
  }
}

TEST(FieldReaderTest, PlainWordsThatAreNotTextMustBeQuoted) {
  for (const char* word :
       {"1", "-5", "0x1f", "1.5", ".5", "1e9", ".inf", ".nan", "true", "False", "yes", "NO", "on", "Off", "y"}) {
    EXPECT_THAT(FindingsOn(absl::StrCat("t: ", word), [](FieldReader& r) { EXPECT_FALSE(r.Text("t", kShortText)); }),
                HasSubstr("is not text to YAML; put it in quotes"))
        << word;
    EXPECT_EQ(FindingsOn(absl::StrCat("t: '", word, "'"), [](FieldReader& r) { EXPECT_TRUE(r.Text("t", kShortText)); }),
              "")
        << word;
  }
  for (const char* word : {"1.2.3", "1a", "truex", "0xzz", "e5", "infinity", "1-2", "on-call"}) {
    EXPECT_EQ(FindingsOn(absl::StrCat("t: ", word), [](FieldReader& r) { EXPECT_TRUE(r.Text("t", kShortText)); }), "")
        << word;
  }
}

TEST(FieldReaderTest, DnsNames) {
  const auto accepts = [](const TextRule& rule, const std::string& text) {
    return FindingsOn(absl::StrCat("t: '", text, "'"), [&](FieldReader& r) { r.Text("t", rule); }).empty();
  };
  for (const char* good : {"a", "a-b", "0", "team-red-7"}) EXPECT_TRUE(accepts(kDnsLabel, good)) << good;
  for (const char* bad : {"", "-a", "a-", "A", "a_b", "a.b", "a/b", "..", "\u00e9", "a b"})
    EXPECT_FALSE(accepts(kDnsLabel, bad)) << bad;
  EXPECT_TRUE(accepts(kDnsLabel, std::string(63, 'a')));
  EXPECT_FALSE(accepts(kDnsLabel, std::string(64, 'a')));
  EXPECT_TRUE(accepts(kDnsSubdomain, "a.b-c.d"));
  for (const char* bad : {"", ".", "a.", ".a", "a..b", "a.-b"}) EXPECT_FALSE(accepts(kDnsSubdomain, bad)) << bad;
  EXPECT_TRUE(accepts(kDnsLabelOrEmpty, ""));
  EXPECT_FALSE(accepts(kDnsLabelOrEmpty, "-"));
}

TEST(FieldReaderTest, FileModesAreOctalQuotedOrNot) {
  for (const char* text : {"'0660'", "0660"}) {
    FindingsOn(absl::StrCat("m: ", text), [&](FieldReader& r) { EXPECT_EQ(r.FileMode("m"), 0660u) << text; });
  }
  for (const char* bad : {"660", "0o660", "0888", "1777", "'rw'", "-660", "00660"}) {
    EXPECT_THAT(FindingsOn(absl::StrCat("m: ", bad), [](FieldReader& r) { EXPECT_FALSE(r.FileMode("m")); }),
                HasSubstr("is not a file mode"))
        << bad;
  }
}

TEST(FieldReaderTest, MapsAreBoundedAndHoldText) {
  FindingsOn("l: {b: x, a: ''}", [](FieldReader& r) {
    EXPECT_THAT(r.TextMap("l", 2), ElementsAre(::testing::Pair("a", ""), ::testing::Pair("b", "x")));
  });
  EXPECT_THAT(FindingsOn("l: {a: x, b: y}", [](FieldReader& r) { r.TextMap("l", 1); }),
              HasSubstr("has 2 keys; allowed: at most 1"));
  EXPECT_THAT(FindingsOn("l: {a: 5}", [](FieldReader& r) { r.TextMap("l", 1); }),
              HasSubstr("spec.l.a: '5' is not text"));
  EXPECT_THAT(FindingsOn("l: [a]", [](FieldReader& r) { r.TextMap("l", 1); }), HasSubstr("spec.l: must be a mapping"));
}

TEST(FieldReaderTest, AWholeOfTheWrongKindIsOneFinding) {
  EXPECT_EQ(FindingsOn("[1, 2]",
                       [](FieldReader& r) {
                         r.Require("name");
                         EXPECT_FALSE(r.Text("name", kShortText));
                       }),
            "a.yaml:1:1: spec: must be a mapping (key: value)");
}

}  // namespace
}  // namespace kvartal::crds
