#include "operator/reconcile/compile_cluster.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "tests/unit/reconcile/cluster_fixture.h"

namespace kvartal::reconcile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(CompileClusterTest, ANodeGetsTheTenantsOfItsPoolAndNoOthers) {
  state_.pools.push_back(Pool("other", "10Gi"));
  state_.policies = {Policy("red", "a", "1Gi", "2Gi", kOld), Policy("blue", "b", "", "50%", kOld)};
  crds::PoolClaim elsewhere;
  elsewhere.pool_ref = "other";
  elsewhere.dram.limit = Size("1Gi");
  state_.policies[0].wanted.Edit()->pools.push_back(elsewhere);
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("b", "a"));
  EXPECT_THAT(TenantsOn("n3"), ElementsAre("a"));
  // Each with the one claim that holds there, and with the identity of its namespace.
  const crds::PolicySet::Object& sent = compiled_.nodes.at("n3")->set.objects().at("TenantKVPolicy/red/a");
  EXPECT_THAT(sent.manifest, HasSubstr("\"poolRef\":\"other\""));
  EXPECT_THAT(sent.manifest, Not(HasSubstr("\"poolRef\":\"p\"")));
  EXPECT_EQ(sent.namespace_uid, "ns-red");
  EXPECT_EQ(compiled_.policies.at({"red", "a"}).nodes_matched, 3u);
  EXPECT_EQ(compiled_.policies.at({"blue", "b"}).nodes_matched, 2u);
  EXPECT_EQ(compiled_.policies.at({"blue", "b"}).effective.at(0).dram.limit_bytes, Size("50Gi").bytes);
}

TEST_F(CompileClusterTest, ANodeIsOfTheOlderOfTwoPoolsThatSelectIt) {
  state_.pools = {Pool("young", "1Gi", kNew), Pool("elder", "1Gi", kOld)};
  for (PoolObject& object : state_.pools) object.pool.node_labels.clear();
  compiled_ = CompileCluster(state_);
  for (const char* node : {"n1", "n2", "n3"}) EXPECT_EQ(compiled_.nodes.at(node)->pool, "elder");
}

TEST_F(CompileClusterTest, ANodeOfNoPoolEnforcesNothing) { EXPECT_FALSE(CompileCluster(state_).nodes.contains("n3")); }

TEST_F(CompileClusterTest, AServiceAccountBelongsToTheOlderPolicy) {
  state_.policies = {Policy("red", "young", "", "1Gi", kNew), Policy("red", "elder", "", "1Gi", kOld)};
  for (PolicyObject& object : state_.policies) object.wanted.Edit()->subjects = {{"vllm", std::nullopt, ""}};
  EXPECT_EQ(Of(VerdictOf("red", "elder"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "young"), "Accepted"), "False/SubjectClaimed");
  EXPECT_THAT(MessageOf(VerdictOf("red", "young"), "Accepted"), HasSubstr("red/elder"));
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("elder"));
  // Another namespace's account of the same name is another one.
  state_.policies.push_back(Policy("blue", "vllm", "", "1Gi", kNew));
  EXPECT_EQ(Of(VerdictOf("blue", "vllm"), "Accepted"), "True/Accepted");
}

TEST_F(CompileClusterTest, AGuaranteeThatNoLongerFitsIsNotAccepted) {
  state_.policies = {Policy("red", "a", "60Gi", "", kOld), Policy("red", "b", "41Gi", "", kNew)};
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "False/NoCapacity");
  EXPECT_THAT(MessageOf(VerdictOf("red", "b"), "Accepted"), HasSubstr(std::to_string(Size("40Gi").bytes)));
  state_.policies[1].wanted.Edit()->pools[0].dram.guarantee = Size("40Gi");
  EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "True/Accepted");
}

// By age alone an older policy could edit a younger one out of what it was promised.
TEST_F(CompileClusterTest, AnEditOfTheOlderPolicyTakesNothingFromTheYounger) {
  state_.policies = {Policy("red", "elder", "50Gi", "", kOld), Policy("blue", "young", "50Gi", "", kNew)};
  AcceptAll();
  state_.policies[0].wanted.Edit()->pools[0].dram.guarantee = Size("51Gi");
  const PolicyVerdict& elder = VerdictOf("red", "elder");
  EXPECT_EQ(Of(elder, "Accepted"), "False/NoCapacity");
  // And what it had stays in force.
  ASSERT_TRUE(elder.in_force.has_value());
  EXPECT_EQ(elder.in_force->pools[0].dram.guarantee->bytes, Size("50Gi").bytes);
  EXPECT_EQ(Of(compiled_.policies.at({"blue", "young"}), "Accepted"), "True/Accepted");
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("young", "elder"));
}

TEST_F(CompileClusterTest, WithinItsOwnGuaranteeAPolicyMayChangeInAFullPool) {
  state_.policies = {Policy("red", "a", "100Gi", "", kOld)};
  AcceptAll();
  state_.policies[0].wanted.Edit()->pools[0].dram.guarantee = Size("99Gi");
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "True/Accepted");
  EXPECT_EQ(compiled_.policies.at({"red", "a"}).in_force->pools[0].dram.guarantee->bytes, Size("99Gi").bytes);
}

TEST_F(CompileClusterTest, WhatAnEditGivesUpIsThereForTheNextInTheSameRun) {
  state_.policies = {Policy("red", "a", "100Gi", "", kOld), Policy("blue", "b", "50Gi", "", kNew)};
  AcceptAll();
  EXPECT_FALSE(state_.policies[1].accepted.has_value());
  state_.policies[0].wanted.Edit()->pools[0].dram.guarantee = Size("50Gi");
  EXPECT_EQ(Of(VerdictOf("blue", "b"), "Accepted"), "True/Accepted");
}

// Also for whom was judged before it was given up: the next in the row of age got it.
TEST_F(CompileClusterTest, WhatAnEditGivesUpGoesToWhoWaitsLongest) {
  state_.pools = {Pool("p", "100Gi")};
  state_.policies = {Policy("red", "e", "40Gi", "", "2026-02-01T00:00:00Z"),
                     Policy("red", "c", "60Gi", "", "2026-03-01T00:00:00Z")};
  AcceptAll();
  state_.policies.push_back(Policy("blue", "a", "30Gi", "", "2026-01-01T00:00:00Z"));
  state_.policies.push_back(Policy("blue", "d", "30Gi", "", "2026-04-01T00:00:00Z"));
  state_.policies[1].wanted.Edit()->pools[0].dram.guarantee = Size("30Gi");
  EXPECT_EQ(Of(VerdictOf("blue", "a"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("blue", "d"), "Accepted"), "False/NoCapacity");
}

TEST_F(CompileClusterTest, AServiceAccountThatIsGivenUpGoesToWhoWaitsLongest) {
  state_.policies = {Policy("red", "has", "", "1Gi", "2026-02-01T00:00:00Z")};
  state_.policies[0].wanted.Edit()->subjects = {{"vllm", std::nullopt, ""}, {"other", std::nullopt, ""}};
  AcceptAll();
  for (const auto& [name, created] : {std::pair("first", "2026-01-01T00:00:00Z"), {"last", "2026-03-01T00:00:00Z"}}) {
    state_.policies.push_back(Policy("red", name, "", "1Gi", created));
    state_.policies.back().wanted.Edit()->subjects = {{"vllm", std::nullopt, ""}};
  }
  state_.policies[0].wanted.Edit()->subjects = {{"other", std::nullopt, ""}};
  EXPECT_EQ(Of(VerdictOf("red", "first"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "last"), "Accepted"), "False/SubjectClaimed");
}

// Who gives up here and takes there takes by age: an account in exchange for memory is no gift.
TEST_F(CompileClusterTest, AnEditThatAlsoAsksForMoreDoesNotGoFirst) {
  state_.policies = {Policy("red", "young", "60Gi", "", kNew)};
  AcceptAll();
  state_.policies.push_back(Policy("red", "elder", "10Gi", "", kOld));
  state_.policies[1].wanted.Edit()->subjects = {{"vllm", std::nullopt, ""}};
  state_.policies[0].wanted.Edit()->subjects = {{"vllm", std::nullopt, ""}};
  state_.policies[0].wanted.Edit()->pools[0].dram.guarantee = Size("30Gi");
  EXPECT_EQ(Of(VerdictOf("red", "elder"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "young"), "Accepted"), "False/SubjectClaimed");
}

TEST_F(CompileClusterTest, AGrantBoundsWhatANamespaceMayAskFor) {
  crds::Grant grant;
  grant.match_labels = {{"team", "red"}};
  grant.max_guarantee.dram = Size("10Gi");
  state_.pools[0].pool.grants = {grant};
  state_.policies = {Policy("red", "a", "10Gi", "20Gi", kOld), Policy("red", "b", "11Gi", "20Gi", kOld),
                     Policy("blue", "c", "1Gi", "2Gi", kOld)};
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "True/Accepted");
  EXPECT_EQ(Of(VerdictOf("red", "b"), "Accepted"), "False/AboveGrant");
  EXPECT_EQ(Of(VerdictOf("blue", "c"), "Accepted"), "False/AboveGrant");
}

// As with a ResourceQuota: lowering it does not evict whom it admitted. The condition tells the administrator.
TEST_F(CompileClusterTest, AGrantThatIsLoweredLeavesInForceWhatItAdmittedAndSaysSo) {
  state_.policies = {Policy("red", "a", "10Gi", "20Gi", kOld)};
  AcceptAll();
  crds::Grant grant;
  grant.max_guarantee.dram = Size("1Gi");
  state_.pools[0].pool.grants = {grant};
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/AboveGrant");
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("a"));
}

// Which of them a node kept would be by chance.
TEST_F(CompileClusterTest, APoolThatIsNotThereConcernsItsClaimAlone) {
  state_.policies = {Policy("red", "a", "", "1Gi", kOld)};
  crds::PoolClaim missing;
  missing.pool_ref = "gone";
  state_.policies[0].wanted.Edit()->pools.push_back(missing);
  EXPECT_EQ(Of(VerdictOf("red", "a"), "ResolvedRefs"), "False/NotFound");
  EXPECT_THAT(MessageOf(VerdictOf("red", "a"), "ResolvedRefs"), HasSubstr("spec.pools[1].poolRef"));
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("a"));
}

// A policy before its pool is an ordinary order of things; a claim that was never judged was in force for good, above
// every grant, once its pool came.
TEST_F(CompileClusterTest, AClaimOnAPoolThatIsNotThereIsJudgedWhenThePoolComes) {
  state_.policies = {Policy("red", "a", "", "1Gi", kOld)};
  crds::PoolClaim early;
  early.pool_ref = "late";
  early.dram.guarantee = early.dram.limit = Size("50Gi");
  state_.policies[0].wanted.Edit()->pools.push_back(early);
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "True/Accepted");
  EXPECT_EQ(VerdictOf("red", "a").accepted->pools.size(), 1u);
  AcceptAll();
  state_.pools.push_back(Pool("late", "100Gi"));
  state_.nodes[2].labels = {{"pool", "late"}};
  crds::Grant grant;
  grant.max_limit.dram = Size("1Gi");
  state_.pools[1].pool.grants = {grant};
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/AboveGrant");
  EXPECT_THAT(TenantsOn("n3"), IsEmpty());
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("a"));
  state_.pools[1].pool.grants.clear();
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "True/Accepted");
  EXPECT_THAT(TenantsOn("n3"), ElementsAre("a"));
}

TEST_F(CompileClusterTest, AClaimThatWasAcceptedOutlivesAnAbsenceOfItsPoolOnlyAsItWas) {
  state_.policies = {Policy("red", "a", "10Gi", "20Gi", kOld)};
  AcceptAll();
  const PoolObject pool = state_.pools[0];
  const auto after_absence = [&](const auto& edit) {
    ClusterState before = state_;
    state_.pools.clear();
    edit(state_.policies[0].wanted.Edit());
    AcceptAll();
    state_.pools = {pool};
    crds::Grant grant;
    grant.max_sla_tier = "Basic";
    grant.max_limit.dram = Size("1Gi");
    state_.pools[0].pool.grants = {grant};
    const std::vector<std::string> tenants = TenantsOn("n1");
    state_ = std::move(before);
    return tenants;
  };
  EXPECT_THAT(after_absence([](crds::TenantPolicy* wanted) { wanted->ttl.dram_seconds += 1; }), ElementsAre("a"));
  EXPECT_THAT(after_absence([](crds::TenantPolicy* wanted) { wanted->pools[0].dram.limit = Size("30Gi"); }), IsEmpty());
  EXPECT_THAT(after_absence([](crds::TenantPolicy* wanted) { wanted->sla_tier = "Premium"; }), IsEmpty());
  EXPECT_THAT(after_absence([](crds::TenantPolicy* wanted) { wanted->gpu_group = "g"; }), IsEmpty());
}

// The cache of namespaces may lag: by the labels of the namespace that was there before, nothing is granted for good.
TEST_F(CompileClusterTest, WhatWasAcceptedForANamespaceThatIsGoneIsJudgedAnewInTheOneOfItsName) {
  crds::Grant grant;
  grant.match_labels = {{"team", "red"}};
  state_.pools[0].pool.grants = {grant};
  state_.policies = {Policy("red", "a", "10Gi", "20Gi", kOld)};
  AcceptAll();
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("a"));
  state_.namespaces[0] = {"red", "ns-red-again", {}};
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/AboveGrant");
  EXPECT_THAT(TenantsOn("n1"), IsEmpty());
}

TEST_F(CompileClusterTest, APoolThatCannotBeReadKeepsItsNodesFromOthers) {
  state_.pools = {Pool("elder", "1Gi", kOld), Pool("young", "1Gi", kNew)};
  state_.pools[0].pool.node_labels = {{"pool", "p"}};
  state_.pools[1].pool.node_labels.clear();
  state_.pools[0].why_unreadable = "spec.later: unknown key";
  state_.policies = {Policy("red", "a", "", "1Gi", kOld)};
  state_.policies[0].wanted.Edit()->pools[0].pool_ref = "elder";
  compiled_ = CompileCluster(state_);
  EXPECT_FALSE(compiled_.nodes.contains("n1")) << "it goes on with what it has";
  EXPECT_EQ(compiled_.nodes.at("n3")->pool, "young");
  EXPECT_EQ(Of(compiled_.policies.at({"red", "a"}), "ResolvedRefs"), "False/NotFound");
  EXPECT_THAT(MessageOf(compiled_.policies.at({"red", "a"}), "ResolvedRefs"), HasSubstr("cannot be read"));
}

// A recreated namespace or policy inherits nothing.
TEST_F(CompileClusterTest, WhatWasAcceptedOfAnotherObjectOfThatNameDoesNotCount) {
  state_.policies = {Policy("red", "a", "50Gi", "", kOld)};
  AcceptAll();
  state_.policies[0].uid = state_.policies[0].wanted.Edit()->uid = "uid-again";
  state_.policies[0].wanted.Edit()->pools[0].dram.guarantee = Size("200Gi");
  EXPECT_FALSE(VerdictOf("red", "a").in_force.has_value());
  EXPECT_THAT(TenantsOn("n1"), IsEmpty());
  state_.namespaces.clear();
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/NotFound");
}

TEST_F(CompileClusterTest, WhatCannotBeReadKeepsWhatWasAcceptedInForce) {
  state_.policies = {Policy("red", "a", "50Gi", "", kOld)};
  AcceptAll();
  state_.policies[0].wanted.reset();
  state_.policies[0].why_unreadable = "spec.later: unknown key";
  EXPECT_EQ(Of(VerdictOf("red", "a"), "Accepted"), "False/Invalid");
  EXPECT_THAT(TenantsOn("n1"), ElementsAre("a"));
}

// Deleted and made again as something we cannot read: it is nobody's heir.
TEST_F(CompileClusterTest, WhatCannotBeReadInheritsNothingFromAnotherObjectOfThatName) {
  state_.policies = {Policy("red", "a", "50Gi", "", kOld)};
  AcceptAll();
  state_.policies[0].wanted.reset();
  state_.policies[0].uid = "uid-again";
  EXPECT_FALSE(VerdictOf("red", "a").in_force.has_value());
  EXPECT_THAT(TenantsOn("n1"), IsEmpty());
}

TEST_F(CompileClusterTest, TheVersionChangesWithWhatIsEnforcedAndWithNothingElse) {
  state_.policies = {Policy("red", "a", "1Gi", "2Gi", kOld)};
  const std::string version = CompileCluster(state_).nodes.at("n1")->version;
  EXPECT_EQ(CompileCluster(state_).nodes.at("n2")->version, version);
  state_.policies[0].wanted.Edit()->source = "elsewhere:7";
  state_.policies[0].created = kNew;
  state_.nodes.push_back({"n9", {{"pool", "p"}}});
  EXPECT_EQ(CompileCluster(state_).nodes.at("n1")->version, version);
  state_.policies[0].wanted.Edit()->ttl.dram_seconds += 1;
  const std::string other = CompileCluster(state_).nodes.at("n1")->version;
  EXPECT_NE(other, version);
  state_.pools[0].pool.soft_cap_percent = 60;
  EXPECT_NE(CompileCluster(state_).nodes.at("n1")->version, other);
}

// Of ten thousand policies each step of a decision would else make a copy of each.
TEST_F(CompileClusterTest, WhatIsAcceptedIsOnePolicyInEveryPlaceAndFromDecisionToDecision) {
  state_.policies = {Policy("red", "a", "1Gi", "2Gi", kOld)};
  AcceptAll();
  const CompiledCluster first = CompileCluster(state_);
  const PolicyVerdict& told = first.policies.at({"red", "a"});
  EXPECT_TRUE(told.accepted.SharedWith(state_.policies[0].accepted));
  EXPECT_TRUE(told.in_force.SharedWith(told.accepted));
  EXPECT_TRUE(first.nodes.at("n1")->tenants.at(0).SharedWith(told.accepted));
  // Who edits one changes nobody else's.
  state_.policies[0].accepted.Edit()->weight = 9'999;
  EXPECT_NE(told.accepted->weight, 9'999u);
}

TEST_F(CompileClusterTest, WhatIsAsItWasIsSharedWithTheLastTime) {
  state_.pools.push_back(Pool("other", "100Gi"));
  state_.policies = {Policy("red", "a", "1Gi", "2Gi", kOld), Policy("blue", "b", "1Gi", "2Gi", kOld),
                     Policy("blue", "c", "1Gi", "2Gi", kOld)};
  state_.policies[2].wanted.Edit()->pools[0].pool_ref = "other";
  const CompiledCluster first = CompileCluster(state_);
  EXPECT_EQ(CompileCluster(state_, first).nodes, first.nodes) << "the very same";
  const std::function<void()> changes[] = {[&] { state_.policies[0].wanted.Edit()->ttl.dram_seconds += 1; },
                                           [&] { state_.policies.erase(state_.policies.begin() + 1); },
                                           [&] { state_.namespaces[0].uid = "ns-made-anew"; },
                                           [&] { state_.pools[0].pool.soft_cap_percent = 60; },
                                           [&] { state_.policies.push_back(Policy("red", "d", "", "2Gi", kNew)); }};
  CompiledCluster before = first;
  for (const auto& change : changes) {
    change();
    const CompiledCluster shared = CompileCluster(state_, before), anew = CompileCluster(state_);
    EXPECT_EQ(shared.nodes.at("n1")->version, anew.nodes.at("n1")->version);
    EXPECT_NE(shared.nodes.at("n1")->version, before.nodes.at("n1")->version);
    EXPECT_EQ(shared.nodes.at("n3"), first.nodes.at("n3")) << "another pool's";
    before = shared;
  }
}

// Objects come from caches in any order, and every replica has to say the same. Beside that: whatever is asked, what is
// in force fits and has one owner a subject, and asking again changes nothing.
TEST_F(CompileClusterTest, AnyOrderOfObjectsGivesTheSameAnswerAndItHoldsTogether) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    state_.policies.clear();
    state_.pools = {Pool("p", std::to_string(random() % 60 + 1) + "Gi")};
    for (int i = 0; i < 12; ++i) {
      PolicyObject object =
          Policy(random() % 2 == 0 ? "red" : "blue", "t" + std::to_string(i), std::to_string(random() % 20) + "Gi",
                 "30Gi", absl::StrCat("2026-01-0", random() % 3 + 1, "T00:00:00Z"));
      object.wanted.Edit()->subjects = {{"sa" + std::to_string(random() % 8), std::nullopt, ""}};
      if (random() % 2 == 0) {
        object.accepted = object.wanted;
        object.wanted.Edit()->pools[0].dram.guarantee = Size(std::to_string(random() % 30) + "Gi");
      }
      state_.policies.push_back(object);
    }
    const CompiledCluster first = CompileCluster(state_);
    uint64_t guaranteed = 0;
    std::set<std::string> subjects;
    for (const auto& [key, verdict] : first.policies) {
      if (!verdict.in_force) continue;
      if (verdict.in_force->pools[0].dram.guarantee) guaranteed += verdict.in_force->pools[0].dram.guarantee->bytes;
      for (const crds::Subject& subject : verdict.in_force->subjects)
        EXPECT_TRUE(subjects.insert(key.first + "/" + subject.service_account_name).second) << "seed " << seed;
    }
    EXPECT_LE(guaranteed, state_.pools[0].pool.dram.bytes) << "seed " << seed;
    std::shuffle(state_.policies.begin(), state_.policies.end(), random);
    std::shuffle(state_.nodes.begin(), state_.nodes.end(), random);
    const CompiledCluster again = CompileCluster(state_);
    for (const auto& [key, verdict] : first.policies)
      EXPECT_EQ(verdict.conditions, again.policies.at(key).conditions) << "seed " << seed;
    EXPECT_EQ(first.nodes.at("n1")->version, again.nodes.at("n1")->version) << "seed " << seed;
    EXPECT_EQ(CompileCluster(state_, compiled_).nodes.at("n1")->version, again.nodes.at("n1")->version) << seed;
    compiled_ = again;
    for (PolicyObject& object : state_.policies) object.accepted = first.policies.at({object.ns, object.name}).accepted;
    const CompiledCluster later = CompileCluster(state_);
    EXPECT_EQ(later.nodes.at("n1")->version, first.nodes.at("n1")->version) << "seed " << seed;
    for (const auto& [key, verdict] : first.policies)
      EXPECT_EQ(verdict.conditions, later.policies.at(key).conditions) << "seed " << seed << " " << key.second;
  }
}

}  // namespace
}  // namespace kvartal::reconcile
