#include "daemon/control/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "daemon/control/decision_words.h"

namespace kvartal::control {
namespace {

namespace pb = admin::v1;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DecisionWords, EveryReasonHasItsOwnMeaningAndARemedy) {
  std::set<std::string> meanings;
  for (size_t i = 0; i < policy::kRefusalCount; ++i) {
    const DecisionWords words = WordsOf(static_cast<policy::Refusal>(i));
    EXPECT_THAT(words.meaning, ::testing::Not(HasSubstr("no words"))) << i;
    EXPECT_STRNE(words.remedy, "");
    meanings.insert(words.meaning);
  }
  for (size_t i = 0; i < policy::kDropReasonCount; ++i) {
    const DecisionWords words = WordsOf(static_cast<policy::DropReason>(i));
    EXPECT_THAT(words.meaning, ::testing::Not(HasSubstr("no words"))) << i;
    EXPECT_STRNE(words.remedy, "");
    meanings.insert(words.meaning);
  }
  EXPECT_EQ(meanings.size(), policy::kRefusalCount + policy::kDropReasonCount);
}

class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() {
    policy::TenantRules rules;
    rules.name = "red/cache";
    rules.sla = policy::SlaTier::kPremium;
    rules.weight = 400;
    rules.ttl_ms = {30'000, 600'000, 0};
    rules.uids = {1001};
    rules.sockets = {"red"};
    rules.service_accounts = {"red/vllm"};
    view_.policy = policy::PolicyTable::FromRules({rules}, {});
    view_.wall_ms = 1'000'000;
    view_.tenant_names = {{TenantId(0), "gone/cache"}, {TenantId(1), "red/cache"}, {TenantId(2), "blue/cache"}};
    view_.engine.capacity_bytes = {0, 1000, 2000};
    view_.engine.charged_bytes = {0, 700, 0};
    view_.engine.reclaiming_bytes = {0, 100, 0};
    view_.tiers[TierIndex(TierKind::kDram)].configured = true;
    for (const char* name : {"red/cache", "blue/cache"}) view_.engine.tenants.emplace_back().name = name;
    view_.sessions.resize(3);
    view_.sessions[0].tenant = view_.sessions[2].tenant = "red/cache";
  }
  engine::TenantTierStats& Dram() { return view_.engine.tenants[0].tiers[TierIndex(TierKind::kDram)]; }
  pb::ExplainReply Explain(const std::string& tenant = "red/cache") {
    pb::ExplainReply reply;
    const absl::Status status = FillExplain(view_, tenant, &reply);
    EXPECT_TRUE(status.ok()) << status;
    return reply;
  }
  NodeView view_;
};

TEST_F(ExplainTest, TellsRulesAndStanding) {
  Dram().charged_bytes = 600;
  Dram().limit_bytes = 800;
  Dram().guarantee_bytes = 500;
  Dram().fair_share_bytes = 650;
  Dram().demand_bytes = 900;
  const pb::ExplainReply reply = Explain();
  EXPECT_EQ(reply.sla_tier(), "Premium");
  EXPECT_EQ(reply.weight(), 400u);
  EXPECT_THAT(reply.subjects(), ::testing::ElementsAre("uid 1001", "socket red", "service account red/vllm"));
  EXPECT_EQ(reply.sessions(), 2u);
  EXPECT_FALSE(reply.removed());
  ASSERT_EQ(reply.tiers_size(), 3);
  const pb::ExplainTier& dram = reply.tiers(1);
  EXPECT_EQ(dram.name(), "dram");
  EXPECT_EQ(dram.free_bytes(), 200u) << "what is being punched is not free yet";
  EXPECT_EQ(dram.charged_bytes(), 600u);
  EXPECT_EQ(dram.fair_share_bytes(), 650u);
  EXPECT_EQ(dram.demand_bytes(), 900u);
  EXPECT_EQ(dram.ttl_ms(), 600'000u);
}

TEST_F(ExplainTest, TheLatestDecisionIsFirstAndNamesWhoGotTheSpace) {
  Dram().refusal(policy::Refusal::kTenantLimit) = {3, 300, 900'000, TenantId::None()};
  Dram().drop(policy::DropReason::kTakenByOther) = {5, 500, 990'000, TenantId(2)};
  const pb::ExplainReply reply = Explain();
  ASSERT_EQ(reply.decisions_size(), 2);
  const pb::Decision& taken = reply.decisions(0);
  EXPECT_EQ(taken.kind(), "dropped");
  EXPECT_EQ(taken.reason(), "taken_by_other");
  EXPECT_EQ(taken.tier(), "dram");
  EXPECT_EQ(taken.count(), 5u);
  EXPECT_EQ(taken.bytes(), 500u);
  EXPECT_EQ(taken.last_ms_ago(), 10'000u);
  EXPECT_EQ(taken.taker(), "blue/cache");
  EXPECT_THAT(taken.meaning(), StartsWith("another tenant was entitled"));
  EXPECT_EQ(reply.decisions(1).kind(), "refused");
  EXPECT_EQ(reply.decisions(1).reason(), "tenant_limit");
  EXPECT_EQ(reply.decisions(1).taker(), "");
}

TEST_F(ExplainTest, AClockThatWasSetBackIsNotTheFuture) {
  Dram().refusal(policy::Refusal::kCapacity) = {1, 1, 2'000'000, TenantId::None()};
  EXPECT_EQ(Explain().decisions(0).last_ms_ago(), 0u);
}

TEST_F(ExplainTest, ATenantThatLeftThePolicyIsToldSo) {
  view_.removed_grace_ms = 600'000;
  engine::TenantTierStats& left = view_.engine.tenants[1].tiers[TierIndex(TierKind::kDram)];
  left.charged_bytes = left.limit_bytes = left.fair_share_bytes = left.demand_bytes = 300;
  const pb::ExplainReply reply = Explain("blue/cache");
  EXPECT_TRUE(reply.removed());
  EXPECT_EQ(reply.removed_grace_ms(), 600'000u);
  EXPECT_EQ(reply.sla_tier(), "");
  EXPECT_EQ(reply.tiers(1).charged_bytes(), 300u);
  EXPECT_EQ(reply.tiers(1).limit_bytes() + reply.tiers(1).fair_share_bytes() + reply.tiers(1).demand_bytes(), 0u);
  EXPECT_EQ(Explain().removed_grace_ms(), 0u) << "red is in the policy";
}

TEST_F(ExplainTest, AnUnknownTenantNamesThoseThereAre) {
  pb::ExplainReply reply;
  const absl::Status status = FillExplain(view_, "green/cache", &reply);
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("there are: red/cache, blue/cache"));
}

}  // namespace
}  // namespace kvartal::control
