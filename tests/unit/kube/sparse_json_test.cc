// What is kept of a JSON text of which a part is wanted, against what reading all of it and taking the part would give.
#include "operator/kube/sparse_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvartal::kube {
namespace {

using nlohmann::json;

const json kWanted = {{"metadata", {{"name", true}, {"uid", true}}},
                      {"spec", {{"node", true}}},
                      {"items", {{"a", true}, {"b", {{"c", true}}}}}};

json Kept(const std::string& text) { return ParseSparse(text, kWanted); }

TEST(SparseJsonTest, WhatIsWantedIsKeptAndTheRestIsAsIfItWereNotThere) {
  EXPECT_EQ(Kept(R"({"kind":"Pod","metadata":{"labels":{"name":"no","uid":["no"]},"name":"x","uid":7},
                     "spec":{"containers":[{"node":"no"},[[{"node":"no"}]]],"node":"n1"},
                     "status":{"spec":{"node":1}}})"),
            json::parse(R"({"metadata":{"name":"x","uid":7},"spec":{"node":"n1"}})"));
  EXPECT_EQ(Kept("{}"), json::object());
  EXPECT_EQ(Kept(R"({"metadata":null,"spec":"text"})"), json::object()) << "fields are wanted of it, and it has none";
}

TEST(SparseJsonTest, AnArrayIsLookedThrough) {
  EXPECT_EQ(Kept(R"({"items":[{"a":1,"x":[{"a":2}],"b":{"c":"d","a":3}},{"y":1},{"a":false}],"a":4})"),
            json::parse(R"({"items":[{"a":1,"b":{"c":"d"}},{},{"a":false}]})"));
  EXPECT_EQ(Kept(R"({"items":[]})"), json::parse(R"({"items":[]})"));
}

// A field that is wanted whole is of whatever size its writer likes, if it may be more than a text.
TEST(SparseJsonTest, NamesThatNobodyKnowsBeforeAreWantedByAStar) {
  const json wanted = {{"labels", {{"*", true}}}, {"name", true}};
  EXPECT_EQ(ParseSparse(R"({"labels":{"a":"1","b/c":"2","more":{"x":1}},"name":"n","other":"o"})", wanted),
            (json{{"labels", {{"a", "1"}, {"b/c", "2"}}}, {"name", "n"}}));
}

TEST(SparseJsonTest, WhatIsMoreThanOneValueIsNotKeptInThePlaceOfOne) {
  EXPECT_EQ(Kept(R"({"metadata":{"name":{"name":"x"},"uid":["y"]}})"), json::parse(R"({"metadata":{}})"));
}

TEST(SparseJsonTest, WhereNothingIsSaidAllIsWanted) {
  const std::string text = R"({"a":[1,-2,3.5,null,true,{"b":"\u00fc"}]})";
  EXPECT_EQ(ParseSparse(text, nullptr), json::parse(text));
}

TEST(SparseJsonTest, ATextThatIsNotJsonIsNoneWhereverItBreaks) {
  const std::string text = R"({"junk":[{"a":"\n"},{}],"metadata":{"name":"x","labels":{}}})";
  ASSERT_FALSE(Kept(text).is_discarded());
  for (size_t cut = 0; cut < text.size(); ++cut) {
    EXPECT_TRUE(Kept(text.substr(0, cut)).is_discarded()) << cut;
    std::string broken = text;
    broken[cut] = '\x01';
    EXPECT_TRUE(Kept(broken).is_discarded()) << cut;
  }
  EXPECT_TRUE(Kept(text + "}").is_discarded());
}

TEST(SparseJsonTest, WhatIsPassedOverMayBeAsDeepAsItLikes) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_EQ(Kept(R"({"junk":)" + deep + R"(,"metadata":{"name":"x"}})"), json::parse(R"({"metadata":{"name":"x"}})"));
}

}  // namespace
}  // namespace kvartal::kube
