// Guarantees against what a pool states it has.
#include <gmock/gmock.h>

#include "daemon/base/limits.h"
#include "tests/unit/reconcile/cluster_fixture.h"

namespace kvartal::reconcile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using PoolCapacityTest = CompileClusterTest;

TEST_F(PoolCapacityTest, InAPoolThatWasMadeSmallerTheYoungestLoseTheirGuaranteesAndKeepTheirLimits) {
  state_.policies = {Policy("red", "a", "60Gi", "80Gi", kOld), Policy("red", "b", "40Gi", "", kNew)};
  AcceptAll();
  state_.pools[0].pool.dram = Size("70Gi");
  const PolicyVerdict& young = VerdictOf("red", "b");
  EXPECT_EQ(Of(young, "GuaranteeMet"), "False/NoCapacity");
  ASSERT_TRUE(young.in_force.has_value());
  EXPECT_FALSE(young.in_force->pools[0].dram.guarantee.has_value());
  EXPECT_EQ(young.in_force->pools[0].dram.limit->Resolve(Size("70Gi").bytes), Size("70Gi").bytes);
  EXPECT_EQ(Of(compiled_.policies.at({"red", "a"}), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(compiled_.policies.at({"red", "a"}), "GuaranteeMet"), "");
}

// The acceptance is remembered, not what was left of it: the next run took the policy without its guarantee for one
// that fits, and a pool that grew again did not bring it back.
TEST_F(PoolCapacityTest, AGuaranteeThatDoesNotFitIsMissedUntilThePoolHasRoomAgain) {
  state_.policies = {Policy("red", "a", "60Gi", "80Gi", kOld), Policy("red", "b", "40Gi", "", kNew)};
  AcceptAll();
  state_.pools[0].pool.dram = Size("70Gi");
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(Of(VerdictOf("red", "b"), "GuaranteeMet"), "False/NoCapacity") << run;
    EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "False/NoCapacity") << run;
    AcceptAll();
  }
  // Also when what is wanted now is refused for another reason, or cannot be read.
  state_.policies[1].wanted.Edit()->subjects = {{"a", std::nullopt, ""}};
  EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "False/SubjectClaimed");
  EXPECT_EQ(Of(VerdictOf("red", "b"), "GuaranteeMet"), "False/NoCapacity");
  AcceptAll();
  state_.policies[1].wanted.reset();
  EXPECT_EQ(Of(VerdictOf("red", "b"), "GuaranteeMet"), "False/NoCapacity");
  AcceptAll();
  state_.pools[0].pool.dram = Size("100Gi");
  const PolicyVerdict& again = VerdictOf("red", "b");
  EXPECT_EQ(Of(again, "GuaranteeMet"), "");
  EXPECT_EQ(again.in_force->pools[0].dram.guarantee->bytes, Size("40Gi").bytes);
}

TEST_F(PoolCapacityTest, WhatIsOwedToOneIsNotAcceptedOfAnother) {
  state_.policies = {Policy("red", "a", "60Gi", "", kOld), Policy("red", "b", "40Gi", "", kNew)};
  AcceptAll();
  state_.pools[0].pool.dram = Size("70Gi");
  state_.policies.push_back(Policy("blue", "c", "10Gi", "", kOld));
  EXPECT_EQ(Of(VerdictOf("blue", "c"), "Accepted"), "False/NoCapacity");
  // Who asks for less than he has is not refused for what others are owed.
  state_.policies[0].wanted.Edit()->pools[0].dram.guarantee = Size("30Gi");
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "b"), "GuaranteeMet"), "");
  EXPECT_EQ(Of(VerdictOf("blue", "c"), "Accepted"), "False/NoCapacity");
}

TEST_F(PoolCapacityTest, AGuaranteeNeedsACapacityThatIsStated) {
  state_.pools[0].pool.has_dram = false;
  state_.policies = {Policy("red", "a", "", "600Gi", kOld), Policy("red", "b", "1Gi", "", kOld),
                     Policy("red", "c", "10%", "1Gi", kOld), Policy("red", "d", "60%", "80%", kOld),
                     Policy("red", "e", "50%", "", kNew)};
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "True/Accepted") << "a limit is for each node to judge";
  EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "False/CapacityNotStated");
  EXPECT_EQ(Of(VerdictOf("red", "c"), "Accepted"), "False/CapacityNotStated") << "above its limit on which node?";
  // Parts add up on whatever node.
  EXPECT_EQ(Of(VerdictOf("red", "d"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "e"), "Accepted"), "False/NoCapacity");
  EXPECT_THAT(MessageOf(VerdictOf("red", "e"), "Accepted"), HasSubstr("50% do not fit: of KVNodePool p 40%"));
  EXPECT_THAT(MessageOf(VerdictOf("red", "b"), "Accepted"), HasSubstr("state spec.capacity.dram"));
  // HBM that is not stated is none.
  state_.policies[0].wanted.Edit()->pools[0].hbm.guarantee = Size("1Gi");
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/NoCapacity");
}

// A percentage of what is not stated is not 0: as that, everything was within the grant.
TEST_F(PoolCapacityTest, AGrantHoldsWhereTheCapacityIsNotStated) {
  state_.pools[0].pool.has_dram = false;
  crds::Grant grant;
  grant.max_sla_tier = "Premium";
  grant.max_guarantee.dram = Size("10%");
  grant.max_limit.dram = Size("10%");
  state_.pools[0].pool.grants = {grant};
  state_.policies = {Policy("red", "within", "5%", "10%", kOld), Policy("red", "above", "90%", "100%", kOld),
                     Policy("red", "limitless", "5%", "", kOld), Policy("red", "bytes", "", "1Gi", kOld)};
  EXPECT_EQ(Of(VerdictOf("red", "within"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "above"), "Accepted"), "False/AboveGrant");
  EXPECT_EQ(Of(VerdictOf("red", "limitless"), "Accepted"), "False/AboveGrant");
  EXPECT_EQ(Of(VerdictOf("red", "bytes"), "Accepted"), "False/CapacityNotStated");
  EXPECT_THAT(MessageOf(VerdictOf("red", "bytes"), "Accepted"), HasSubstr("spec.capacity.dram; state it"));
}

// A capacity that is stated no longer takes nothing from whom it was promised.
TEST_F(PoolCapacityTest, WhatWasAcceptedOutlivesTheStatementOfItsCapacity) {
  state_.policies = {Policy("red", "a", "1Gi", "", kOld)};
  AcceptAll();
  state_.pools[0].pool.has_dram = false;
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/CapacityNotStated");
  ASSERT_TRUE(VerdictOf("red", "a").in_force.has_value());
  EXPECT_TRUE(compiled_.policies.at({"red", "a"}).in_force->pools[0].dram.guarantee.has_value());
}

// In mixed units only a capacity tells; every node of the pool would refuse it.
TEST_F(PoolCapacityTest, AGuaranteeAboveItsLimitAtThePoolsCapacityIsNotAccepted) {
  state_.policies = {Policy("red", "a", "50Gi", "25%", kOld), Policy("red", "b", "25Gi", "25%", kOld),
                     Policy("red", "c", "10%", "1Gi", kOld)};
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/AboveLimit");
  EXPECT_THAT(MessageOf(VerdictOf("red", "a"), "Accepted"), HasSubstr("spec.pools[0].perNode.dram.guarantee"));
  EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "c"), "Accepted"), "False/AboveLimit");
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("b"));
}

// The same where the pool was made smaller under it: half a guarantee is none.
TEST_F(PoolCapacityTest, AGuaranteeThatASmallerPoolPutsAboveItsLimitIsLost) {
  state_.policies = {Policy("red", "a", "20Gi", "25%", kOld)};
  AcceptAll();
  state_.pools[0].pool.dram = Size("40Gi");
  const PolicyVerdict& verdict = VerdictOf("red", "a");
  EXPECT_EQ(Of(verdict, "GuaranteeMet"), "False/AboveLimit");
  ASSERT_TRUE(verdict.in_force.has_value());
  EXPECT_FALSE(verdict.in_force->pools[0].dram.guarantee.has_value());
  EXPECT_EQ(verdict.in_force->pools[0].dram.limit->percent, 25u);
}

TEST_F(PoolCapacityTest, APoolTakesAsManyTenantsAsANodeDoes) {
  for (size_t i = 0; i < kTenantsMax; ++i)
    state_.policies.push_back(Policy("red", absl::StrCat("t", i), "", "1Gi", kOld));
  AcceptAll();
  state_.policies.push_back(Policy("blue", "one", "", "1Gi", kOld));
  EXPECT_EQ(Of(VerdictOf("blue", "one"), "Accepted"), "False/PoolFull");
  EXPECT_EQ(Of(compiled_.policies.at({"red", "t0"}), "Accepted"), "True/Accepted") << "who is there may be edited";
  EXPECT_EQ(TenantsOn("n1").size(), kTenantsMax);
}

}  // namespace
}  // namespace kvartal::reconcile
