#include "operator/reconcile/pool_status.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"
#include "tests/unit/reconcile/cluster_fixture.h"

namespace kvartal::reconcile {
namespace {

using nlohmann::json;

constexpr int64_t kWall = 1'770'000'000'000;

json Object(int64_t generation, json status = nullptr) {
  json object = {{"metadata", {{"name", "p"}, {"uid", "u"}, {"generation", generation}}}};
  if (!status.is_null()) object["status"] = std::move(status);
  return object;
}

PoolVerdict Verdict(size_t matched = 3) {
  PoolVerdict verdict;
  verdict.nodes_matched = matched;
  verdict.guaranteed = {0, 64, 128};
  return verdict;
}

std::string Told(const json& applied, const std::string& type) {
  const json* condition = ConditionIn(applied, type);
  return condition == nullptr
             ? ""
             : absl::StrCat(kube::TextAt(*condition, {"status"}), "/", kube::TextAt(*condition, {"reason"}));
}

std::string ReadyOf(const PoolVerdict& verdict, const PoolProgress& progress) {
  return Told(WholePoolStatus(Object(1), verdict, progress, kWall), "Ready");
}

TEST(PoolStatusTest, WhatIsSaidAlreadyIsNotWrittenAgainHoweverMuchTimePasses) {
  const PoolProgress progress = {3, 3, {}, {}};
  const auto first = PoolStatusToApply(Object(1), Verdict(), progress, kWall);
  ASSERT_TRUE(first.has_value());
  const json& status = (*first)["status"];
  EXPECT_EQ((*first)["metadata"]["uid"], "u");
  EXPECT_EQ(status["observedGeneration"], 1);
  EXPECT_EQ(status["nodes"]["matched"], 3);
  EXPECT_EQ(status["nodes"]["connected"], 3);
  EXPECT_EQ(status["nodes"]["applied"], 3);
  EXPECT_EQ(status["guaranteed"]["dramBytes"], 64);
  EXPECT_EQ(Told(*first, "Accepted"), "True/Accepted");
  EXPECT_EQ(Told(*first, "Ready"), "True/Ready");
  EXPECT_FALSE(PoolStatusToApply(Object(1, status), Verdict(), progress, kWall + 3'600'000).has_value());
  EXPECT_TRUE(PoolStatusToApply(Object(2, status), Verdict(), progress, kWall).has_value()) << "another generation";
  EXPECT_TRUE(PoolStatusToApply(Object(1, status), Verdict(4), progress, kWall).has_value());
}

TEST(PoolStatusTest, WhoIsConnectedAloneIsNoReasonToWrite) {
  const json status = (*PoolStatusToApply(Object(1), Verdict(), {3, 3, {}, {}}, kWall))["status"];
  const PoolProgress one_left = {2, 3, {}, {}};
  EXPECT_FALSE(PoolStatusToApply(Object(1, status), Verdict(), one_left, kWall).has_value());
  EXPECT_TRUE(ConnectedDiffers(Object(1, status), Verdict(), one_left));
  EXPECT_EQ(WholePoolStatus(Object(1, status), Verdict(), one_left, kWall)["status"]["nodes"]["connected"], 2);
  EXPECT_FALSE(ConnectedDiffers(Object(1, status), Verdict(), {3, 3, {}, {}}));
}

TEST(PoolStatusTest, ReadyIsWhenEveryNodeAppliesItAndSaysWhyNot) {
  EXPECT_EQ(ReadyOf(Verdict(), {3, 3, {}, {}}), "True/Ready");
  EXPECT_EQ(ReadyOf(Verdict(), {0, 3, {}, {}}), "True/Ready") << "nodes enforce what they hold, also without a stream";
  EXPECT_EQ(ReadyOf(Verdict(), {3, 2, {}, {"n3"}}), "False/Pending");
  EXPECT_EQ(ReadyOf(Verdict(), {3, 2, {{"n3", "too small"}}, {}}), "False/Rejected");
  EXPECT_EQ(ReadyOf(Verdict(0), {}), "False/NoNodes");
  PoolVerdict unmet = Verdict();
  unmet.unmet_policies = 2;
  EXPECT_EQ(ReadyOf(unmet, {3, 3, {}, {}}), "False/Overcommitted");
}

TEST(PoolStatusTest, OfAPoolThatCannotBeReadItIsToldWhyAndNothingThatIsNotKnown) {
  PoolVerdict verdict = Verdict();
  verdict.why_unreadable = "spec.capacity: what";
  const json applied = *PoolStatusToApply(Object(1), verdict, {}, kWall);
  EXPECT_EQ(Told(applied, "Accepted"), "False/Invalid");
  EXPECT_EQ(Told(applied, "Ready"), "False/Invalid");
  EXPECT_EQ(applied["status"]["nodes"], (json{{"matched", 3}}));
  EXPECT_FALSE(applied["status"].contains("guaranteed"));
}

// --- what there is to be told

class PoolVerdictTest : public CompileClusterTest {
 protected:
  const PoolVerdict& Of(const std::string& pool) {
    compiled_ = CompileCluster(state_);
    return compiled_.pools.at(pool);
  }
};

TEST_F(PoolVerdictTest, APoolHasItsNodesAndTheSumOfWhatIsGuaranteedThere) {
  state_.policies = {Policy("red", "a", "10Gi", "", kOld), Policy("red", "b", "20%", "", kNew)};
  EXPECT_EQ(Of("p").nodes_matched, 2u);
  EXPECT_EQ(Of("p").guaranteed.dram, Size("30Gi").bytes);
  EXPECT_EQ(Of("p").unmet_policies, 0u);
  AcceptAll();
  state_.policies.push_back(Policy("blue", "c", "90Gi", "", kNew));
  EXPECT_EQ(Of("p").guaranteed.dram, Size("30Gi").bytes) << "what is not accepted is not guaranteed";
}

TEST_F(PoolVerdictTest, WhoseGuaranteesASmallerPoolCannotKeepIsCounted) {
  state_.policies = {Policy("red", "a", "60Gi", "", kOld), Policy("red", "b", "30Gi", "", kNew)};
  AcceptAll();
  state_.pools[0].pool.dram = Size("64Gi");
  EXPECT_EQ(Of("p").unmet_policies, 1u);
  EXPECT_EQ(Of("p").guaranteed.dram, Size("60Gi").bytes);
}

TEST_F(PoolVerdictTest, APoolThatCannotBeReadStillHasItsNodes) {
  state_.pools[0].why_unreadable = "what";
  EXPECT_EQ(Of("p").why_unreadable, "what");
  EXPECT_EQ(Of("p").nodes_matched, 2u);
}

}  // namespace
}  // namespace kvartal::reconcile
