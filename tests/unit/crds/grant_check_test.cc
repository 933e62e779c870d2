#include "crds/grant_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "crds/manifest.h"
#include "daemon/base/units.h"

namespace kvartal::crds {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr PoolCapacity kCapacity = {40 * kGiB, 100 * kGiB, 1000 * kGiB};

// The violations of one policy against a pool, both as people write them.
std::vector<std::string> Violations(const std::string& grants, const std::string& policy_spec,
                                    std::map<std::string, std::string> labels = {{"team", "red"}},
                                    const PoolCapacity& capacity = kCapacity) {
  const auto manifests = ParseManifests(
      "apiVersion: kvartal.dev/v1alpha1\nkind: KVNodePool\nmetadata: {name: p}\nspec: {capacity: {}, grants: " +
          grants +
          "}\n---\napiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: cache, namespace: red}\n"
          "spec: " +
          policy_spec + "\n",
      "a.yaml");
  EXPECT_TRUE(manifests.ok()) << manifests.status();
  if (!manifests.ok()) return {"unreadable"};
  return PolicyViolations(manifests->pools[0], manifests->policies[0], labels, capacity);
}

std::string Dram(const std::string& claim) { return "{pools: [{poolRef: p, perNode: {dram: " + claim + "}}]}"; }

TEST(PolicyViolations, APoolWithoutGrantsBoundsNobody) {
  EXPECT_THAT(Violations("[]", "{slaTier: Premium, pools: [{poolRef: p, perNode: {dram: {guarantee: 90%}}}]}"),
              IsEmpty());
}

TEST(PolicyViolations, ExactlyTheBoundIsGrantedAndAByteMoreIsNot) {
  const std::string grants = "[{maxGuarantee: {dram: 10Gi}, maxLimit: {dram: 20%}}]";
  EXPECT_THAT(Violations(grants, Dram("{guarantee: 10Gi, limit: 20Gi}")), IsEmpty());
  EXPECT_THAT(
      Violations(grants, Dram("{guarantee: 10737418241, limit: 20Gi}")),
      ElementsAre(HasSubstr("spec.pools[0].perNode.dram.guarantee: 10737418241 bytes is above "
                            "maxGuarantee.dram 10737418240 bytes of spec.grants[0] of KVNodePool p (a.yaml:1)")));
  EXPECT_THAT(Violations(grants, Dram("{guarantee: 1Gi, limit: 21474836481}")),
              ElementsAre(HasSubstr("dram.limit: 21474836481 bytes is above maxLimit.dram 20% (21474836480 bytes)")));
  EXPECT_THAT(Violations(grants, Dram("{guarantee: 1Gi, limit: 21%}")), SizeIs(1));
}

TEST(PolicyViolations, OfACapacityThatIsNotKnownOnlyLikeIsComparedWithLike) {
  constexpr PoolCapacity kUnknown = {kUnknownCapacityBytes, kUnknownCapacityBytes, kUnknownCapacityBytes};
  const auto violations = [&](const std::string& grants, const std::string& claim) {
    return Violations(grants, Dram(claim), {{"team", "red"}}, kUnknown);
  };
  EXPECT_THAT(violations("[{maxLimit: {dram: 10Gi}}]", "{limit: 20%}"), IsEmpty()) << "a node of 50Gi grants it";
  EXPECT_THAT(violations("[{maxLimit: {dram: 10Gi}}]", "{limit: 11Gi}"), SizeIs(1));
  EXPECT_THAT(violations("[{maxLimit: {dram: 20%}}]", "{limit: 21%}"),
              ElementsAre(HasSubstr("dram.limit: 21% is above maxLimit.dram 20% of spec.grants[0]")));
}

TEST(PolicyViolations, NoLimitAsksForTheWholeCapacity) {
  EXPECT_THAT(Violations("[{maxLimit: {dram: 20%}}]", Dram("{guarantee: 1Gi}")),
              ElementsAre(HasSubstr("dram.limit: is absent, which means the whole capacity")));
  EXPECT_THAT(Violations("[{maxLimit: {dram: 100%}}]", Dram("{guarantee: 1Gi}")), IsEmpty());
}

TEST(PolicyViolations, EveryTierHasItsOwnCapacity) {
  const std::string claims =
      "{pools: [{poolRef: p, perGpu: {hbm: {limit: 5Gi}}, perNode: {dram: {limit: 5Gi}, nvme: {limit: 5Gi}}}]}";
  EXPECT_THAT(Violations("[{maxLimit: {hbm: 10%, dram: 10%, nvme: 10%}}]", claims),
              ElementsAre(HasSubstr("spec.pools[0].perGpu.hbm.limit")));
  EXPECT_THAT(
      Violations("[{maxLimit: {hbm: 0, dram: 0, nvme: 0}}]", claims),
      ElementsAre(HasSubstr("perGpu.hbm.limit"), HasSubstr("perNode.dram.limit"), HasSubstr("perNode.nvme.limit")));
}

TEST(PolicyViolations, AnSlaTierAboveTheGrant) {
  EXPECT_THAT(Violations("[{maxSlaTier: Standard}]", "{slaTier: Premium, pools: [{poolRef: p}]}"),
              ElementsAre(HasSubstr("spec.slaTier: Premium is above maxSlaTier Standard")));
  EXPECT_THAT(Violations("[{maxSlaTier: Standard}]", "{slaTier: Basic, pools: [{poolRef: p}]}"), IsEmpty());
}

TEST(PolicyViolations, GroupsAreGrantedByName) {
  const std::string asks = "{pools: [{poolRef: p}], isolation: {gpuGroup: finance, shareGroup: prompts}}";
  EXPECT_THAT(Violations("[{gpuGroups: [finance], shareGroups: [prompts]}]", asks), IsEmpty());
  EXPECT_THAT(
      Violations("[{gpuGroups: [other]}]", asks),
      ElementsAre(HasSubstr("spec.isolation.gpuGroup: 'finance' is not granted by spec.grants[0] of KVNodePool p "
                            "(a.yaml:1), which has 'other'"),
                  HasSubstr("spec.isolation.shareGroup: 'prompts' is not granted")));
}

TEST(PolicyViolations, OneGrantThatAdmitsAllIsEnoughAndHalvesOfTwoAreNot) {
  const std::string small_premium = "{maxSlaTier: Premium, maxLimit: {dram: 1Gi}}";
  const std::string large_basic = "{maxSlaTier: Basic, maxLimit: {dram: 50Gi}}";
  const std::string both = "[" + small_premium + ", " + large_basic + "]";
  EXPECT_THAT(Violations(both, "{slaTier: Basic, pools: [{poolRef: p, perNode: {dram: {limit: 50Gi}}}]}"), IsEmpty());
  EXPECT_THAT(Violations(both, "{slaTier: Premium, pools: [{poolRef: p, perNode: {dram: {limit: 50Gi}}}]}"),
              ElementsAre(HasSubstr("spec.grants[0]")));
}

TEST(PolicyViolations, TheNearestGrantIsTheOneThatIsTold) {
  EXPECT_THAT(Violations("[{maxSlaTier: Basic, maxLimit: {dram: 1Gi}}, {maxLimit: {dram: 2Gi}}]",
                         "{slaTier: Premium, pools: [{poolRef: p, perNode: {dram: {limit: 3Gi}}}]}"),
              ElementsAre(HasSubstr("spec.grants[1]")));
}

TEST(PolicyViolations, AGrantIsForTheNamespacesWithAllItsLabels) {
  const std::string grants = "[{namespaceSelector: {matchLabels: {team: red, stage: prod}}}]";
  EXPECT_THAT(Violations(grants, Dram("{limit: 1Gi}"), {{"team", "red"}, {"stage", "prod"}, {"more", "x"}}), IsEmpty());
  EXPECT_THAT(Violations(grants, Dram("{limit: 1Gi}"), {{"team", "red"}}),
              ElementsAre(HasSubstr("metadata.namespace: no grant of KVNodePool p (a.yaml:1) is for namespace red")));
  EXPECT_THAT(Violations(grants, Dram("{limit: 1Gi}"), {{"team", "red"}, {"stage", "test"}}), SizeIs(1));
}

TEST(PolicyViolations, APolicyWithoutAClaimOnThePoolAsksNothingOfIt) {
  EXPECT_THAT(Violations("[{maxSlaTier: Basic}]", "{slaTier: Premium, pools: [{poolRef: q}]}"), IsEmpty());
}

}  // namespace
}  // namespace kvartal::crds
