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
  status["nodes"]["seen"] = 2;
  const json of_others = {{"type", "Elsewhere"}, {"status", "True"}};
  status["conditions"].insert(status["conditions"].begin(), of_others);
  return Object(generation, status);
}

TEST(PolicyStatusTest, WhatIsSaidAlreadyIsNotWrittenAgainHoweverMuchTimePasses) {
  const auto first = StatusToApply(Object(1), Verdict(true), {}, kWall);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ((*first)["metadata"]["uid"], "u");
  EXPECT_EQ((*first)["status"]["observedGeneration"], 1);
  EXPECT_FALSE(StatusToApply(Applied(1, *first), Verdict(true), {}, kWall + 3'600'000).has_value());
}

TEST(PolicyStatusTest, AnyChangeOfWhatIsSaidIsWritten) {
  const json object = Applied(1, *StatusToApply(Object(1), Verdict(true), {}, kWall));
  PolicyVerdict more_nodes = Verdict(true);
  more_nodes.nodes_matched = 4;
  EXPECT_TRUE(StatusToApply(object, more_nodes, {}, kWall).has_value());
  PolicyVerdict other_quota = Verdict(true);
  other_quota.effective[0].nvme.limit_bytes = 9;
  EXPECT_TRUE(StatusToApply(object, other_quota, {}, kWall).has_value());
  EXPECT_TRUE(StatusToApply(object, Verdict(false), {}, kWall).has_value());
  PolicyVerdict one_more = Verdict(true);
  one_more.conditions.push_back({"GuaranteeMet", false, "NoCapacity", ""});
  const json with_one_more = Applied(1, *StatusToApply(object, one_more, {}, kWall));
  EXPECT_FALSE(StatusToApply(with_one_more, one_more, {}, kWall).has_value());
  EXPECT_TRUE(StatusToApply(with_one_more, Verdict(true), {}, kWall).has_value());
  json edited = object;
  edited["metadata"]["generation"] = 2;
  EXPECT_TRUE(StatusToApply(edited, Verdict(true), {}, kWall).has_value());
}

TEST(PolicyStatusTest, ATransitionIsTimedOnlyWhenTheStatusChanges) {
  const json object = Applied(1, *StatusToApply(Object(1), Verdict(false), {}, kWall));
  const auto time_of = [](const json& applied, size_t place) {
    return applied["status"]["conditions"][place]["lastTransitionTime"].get<std::string>();
  };
  PolicyVerdict other_reason = Verdict(false);
  other_reason.conditions[1].reason = "AboveGrant";
  EXPECT_EQ(time_of(*StatusToApply(object, other_reason, {}, kWall + 60'000), 1), "2026-02-02T02:40:00Z");
  const json flipped = *StatusToApply(object, Verdict(true), {}, kWall + 60'000);
  EXPECT_EQ(time_of(flipped, 1), "2026-02-02T02:41:00Z");
  EXPECT_EQ(time_of(flipped, 0), "2026-02-02T02:40:00Z");
}

// "False/Pending", or "" when it is not told.
std::string Told(const json& applied, const std::string& type) {
  for (const json& condition : applied["status"]["conditions"]) {
    if (condition["type"] == type)
      return condition["status"].get<std::string>() + "/" + condition["reason"].get<std::string>();
  }
  return "";
}

TEST(PolicyStatusTest, ReadyIsWhenEveryNodeEnforcesWhatIsAskedFor) {
  PolicyVerdict verdict = Verdict(true);
  verdict.in_force.Edit();
  PolicyProgress progress;
  progress.awaited = {"n1", "n2", "n3"};
  json told = *StatusToApply(Object(1), verdict, progress, kWall);
  EXPECT_EQ(Told(told, "Programmed"), "False/Pending");
  EXPECT_EQ(Told(told, "Ready"), "False/Pending");
  EXPECT_EQ(Told(told, "GuaranteeMet"), "True/Fits");
  EXPECT_EQ(Told(told, "WithinQuota"), "True/WithinLimits");

  progress.applied = 2;
  progress.awaited.clear();
  progress.rejected = {{"n3", "no such thing"}};
  told = *StatusToApply(Object(1), verdict, progress, kWall);
  EXPECT_EQ(Told(told, "Programmed"), "False/Rejected");
  EXPECT_EQ(told["status"]["nodes"]["rejected"], json::parse(R"([{"node": "n3", "reason": "no such thing"}])"));

  progress.applied = 3;
  progress.rejected.clear();
  progress.above_limit = {"n2"};
  told = *StatusToApply(Object(1), verdict, progress, kWall);
  EXPECT_EQ(Told(told, "Ready"), "True/Ready");
  EXPECT_EQ(Told(told, "WithinQuota"), "False/AboveLimit");
  EXPECT_EQ(told["status"]["nodes"]["applied"], 3);
}

TEST(PolicyStatusTest, AnOlderGenerationInForceIsNotCountedAsApplied) {
  PolicyVerdict verdict = Verdict(false);
  verdict.in_force.Edit();
  PolicyProgress progress;
  progress.applied = 3;
  const json told = *StatusToApply(Object(2), verdict, progress, kWall);
  EXPECT_EQ(told["status"]["nodes"]["applied"], 0);
  EXPECT_EQ(Told(told, "Programmed"), "False/NotAccepted");
  EXPECT_EQ(Told(told, "Ready"), "False/NoCapacity");
}

TEST(PolicyStatusTest, UsageAloneIsNoWriteAndIsSeenToDiffer) {
  PolicyProgress progress;
  json object = Object(1, (*StatusToApply(Object(1), Verdict(true), progress, kWall))["status"]);
  progress.dram_bytes = 4096;
  EXPECT_FALSE(StatusToApply(object, Verdict(true), progress, kWall).has_value());
  EXPECT_TRUE(UsageDiffers(object, progress));
  object["status"] = WholeStatus(object, Verdict(true), progress, kWall)["status"];
  EXPECT_FALSE(UsageDiffers(object, progress));
}

TEST(PolicyStatusTest, WhatIsInForceIsReadBackFromTheStatusWhateverTheSpecSaysNow) {
  PolicyVerdict verdict = Verdict(true);
  verdict.accepted.Edit();
  verdict.accepted.Edit()->subjects = {{"vllm", std::nullopt, ""}};
  verdict.accepted.Edit()->weight = 7;
  json object = Object(1);
  object["apiVersion"] = "kvartal.dev/v1alpha1";
  object["kind"] = "TenantKVPolicy";
  object["status"] = (*StatusToApply(object, verdict, {}, kWall))["status"];
  object["spec"] = {{"weight", 9}};
  const auto read = InForceByStatus(object);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->weight, 7);
  EXPECT_EQ(read->uid, "u");
  object["status"]["inForce"]["fieldOfTheFuture"] = 1;
  EXPECT_FALSE(InForceByStatus(object).has_value());
  EXPECT_FALSE(InForceByStatus(Object(1)).has_value());
  // Nothing in force any more has to be told, too.
  EXPECT_TRUE(StatusToApply(object, Verdict(true), {}, kWall).has_value());
}

TEST(PolicyStatusTest, ALongMessageIsCutBetweenCharacters) {
  PolicyVerdict verdict = Verdict(false);
  verdict.conditions[1].message = "x";
  for (int i = 0; i < 20'000; ++i) verdict.conditions[1].message += "\xc3\xbc";
  const json applied = *StatusToApply(Object(1), verdict, {}, kWall);
  const std::string message = applied["status"]["conditions"][1]["message"];
  EXPECT_EQ(message.size(), 32767u);
  EXPECT_NO_THROW(applied.dump());
}

TEST(PolicyStatusTest, AStatusOfAnyShapeIsSafe) {
  for (const char* status : {"null", "7", "[]", R"({"conditions":7})", R"({"conditions":[7,{}],"nodes":[]})"})
    EXPECT_TRUE(StatusToApply(Object(1, json::parse(status)), Verdict(true), {}, kWall).has_value()) << status;
}

}  // namespace
}  // namespace kvartal::reconcile
