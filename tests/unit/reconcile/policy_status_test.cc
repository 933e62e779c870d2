#include "operator/reconcile/policy_status.h"

#include <gtest/gtest.h>

namespace kvartal::reconcile {
namespace {

using nlohmann::json;

constexpr int64_t kWall = 1'770'000'000'000;

json Object(int64_t generation, json status = nullptr) {
  json object = {{"metadata", {{"namespace", "red"}, {"name", "a"}, {"uid", "u"}, {"generation", generation}}}};
  if (!status.is_null()) object["status"] = std::move(status);
  return object;
}

PolicyVerdict Verdict(bool accepted) {
  PolicyVerdict verdict;
  verdict.conditions = {{"ResolvedRefs", true, "AllFound", ""},
                        {"Accepted", accepted, accepted ? "Accepted" : "NoCapacity", accepted ? "" : "too much"}};
  verdict.nodes_matched = 3;
  verdict.effective = {{"h200", {}, {1, 2}, {3, 4}}};
  return verdict;
}

// What a server keeps of it, beside what others write.
json Applied(int64_t generation, const json& applied) {
  json status = applied["status"];
  status["usage"] = {{"dramBytes", 7}};
  status["nodes"]["applied"] = 2;
  const json of_others = {{"type", "Programmed"}, {"status", "True"}};
  status["conditions"].insert(status["conditions"].begin(), of_others);
  return Object(generation, status);
}

TEST(PolicyStatusTest, WhatIsSaidAlreadyIsNotWrittenAgainHoweverMuchTimePasses) {
  const auto first = StatusToApply(Object(1), Verdict(true), kWall);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ((*first)["metadata"]["uid"], "u");
  EXPECT_EQ((*first)["status"]["observedGeneration"], 1);
  EXPECT_FALSE(StatusToApply(Applied(1, *first), Verdict(true), kWall + 3'600'000).has_value());
}

TEST(PolicyStatusTest, AnyChangeOfWhatIsSaidIsWritten) {
  const json object = Applied(1, *StatusToApply(Object(1), Verdict(true), kWall));
  PolicyVerdict more_nodes = Verdict(true);
  more_nodes.nodes_matched = 4;
  EXPECT_TRUE(StatusToApply(object, more_nodes, kWall).has_value());
  PolicyVerdict other_quota = Verdict(true);
  other_quota.effective[0].nvme.limit_bytes = 9;
  EXPECT_TRUE(StatusToApply(object, other_quota, kWall).has_value());
  EXPECT_TRUE(StatusToApply(object, Verdict(false), kWall).has_value());
  PolicyVerdict one_more = Verdict(true);
  one_more.conditions.push_back({"GuaranteeMet", false, "NoCapacity", ""});
  const json with_one_more = Applied(1, *StatusToApply(object, one_more, kWall));
  EXPECT_FALSE(StatusToApply(with_one_more, one_more, kWall).has_value());
  EXPECT_TRUE(StatusToApply(with_one_more, Verdict(true), kWall).has_value());
  json edited = object;
  edited["metadata"]["generation"] = 2;
  EXPECT_TRUE(StatusToApply(edited, Verdict(true), kWall).has_value());
}

TEST(PolicyStatusTest, ATransitionIsTimedOnlyWhenTheStatusChanges) {
  const json object = Applied(1, *StatusToApply(Object(1), Verdict(false), kWall));
  const auto time_of = [](const json& applied, size_t place) {
    return applied["status"]["conditions"][place]["lastTransitionTime"].get<std::string>();
  };
  PolicyVerdict other_reason = Verdict(false);
  other_reason.conditions[1].reason = "AboveGrant";
  EXPECT_EQ(time_of(*StatusToApply(object, other_reason, kWall + 60'000), 1), "2026-02-02T02:40:00Z");
  const json flipped = *StatusToApply(object, Verdict(true), kWall + 60'000);
  EXPECT_EQ(time_of(flipped, 1), "2026-02-02T02:41:00Z");
  EXPECT_EQ(time_of(flipped, 0), "2026-02-02T02:40:00Z");
}

TEST(PolicyStatusTest, ALongMessageIsCutBetweenCharacters) {
  PolicyVerdict verdict = Verdict(false);
  verdict.conditions[1].message = "x";
  for (int i = 0; i < 20'000; ++i) verdict.conditions[1].message += "\xc3\xbc";
  const json applied = *StatusToApply(Object(1), verdict, kWall);
  const std::string message = applied["status"]["conditions"][1]["message"];
  EXPECT_EQ(message.size(), 32767u);
  EXPECT_NO_THROW(applied.dump());
}

TEST(PolicyStatusTest, AStatusOfAnyShapeIsSafe) {
  for (const char* status : {"null", "7", "[]", R"({"conditions":7})", R"({"conditions":[7,{}],"nodes":[]})"})
    EXPECT_TRUE(StatusToApply(Object(1, json::parse(status)), Verdict(true), kWall).has_value()) << status;
}

}  // namespace
}  // namespace kvartal::reconcile
