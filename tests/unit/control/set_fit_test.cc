// Tenant by tenant: what a node takes of a set, what it tells of the rest, and to whom.
#include "daemon/control/set_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"

namespace kvartal::control {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr policy::NodeCapacity kNode = {{0, kGiB, 0}};

std::string Key(const std::string& name) { return "TenantKVPolicy/a/" + name; }

// Names in quotes: "y" is a truth to YAML.
std::string Manifest(const std::string& name, const std::string& claim, const std::string& more = "") {
  return absl::StrCat("{apiVersion: kvartal.dev/v1alpha1, kind: TenantKVPolicy, metadata: {name: \"", name,
                      "\", namespace: a, uid: uid-", name, "}, spec: {subjects: [{serviceAccountName: \"", name,
                      "\"}], pools: [{poolRef: p, perNode: {dram: {", claim, "}}}]", more, "}}");
}

std::string PoolManifest(const std::string& capacity, const std::string& more = "") {
  return absl::StrCat("{apiVersion: kvartal.dev/v1alpha1, kind: KVNodePool, metadata: {name: p}, spec: {capacity: {",
                      capacity, "}", more, "}}");
}

// Of names and claims.
crds::PolicySet Set(const std::vector<std::pair<std::string, std::string>>& claims) {
  crds::PolicySet set;
  for (const auto& [name, claim] : claims) set.Put(Key(name), Manifest(name, claim), "ns");
  return set;
}

const policy::TenantRules* RulesOf(const SetFit& fit, const std::string& name) {
  return fit.loaded.table->FindByName("a/" + name);
}
uint64_t LimitOf(const SetFit& fit, const std::string& name) {
  return RulesOf(fit, name) == nullptr ? 0 : RulesOf(fit, name)->tier(TierKind::kDram).limit_bytes;
}

SetFit Fit(const crds::PolicySet& held, const crds::PolicySet& offered) {
  absl::StatusOr<SetFit> fit = FitSet(held, offered, kNode, kNode);
  EXPECT_TRUE(fit.ok()) << fit.status();
  return *std::move(fit);
}

TEST(SetFitTest, WhatCanBeKeptIsHeldAndInForceWhole) {
  const crds::PolicySet offered = Set({{"x", "guarantee: 512Mi"}, {"y", "guarantee: 50%, limit: 60%"}});
  const SetFit fit = Fit({}, offered);
  EXPECT_EQ(fit.held.Version(), offered.Version());
  EXPECT_THAT(fit.refused, IsEmpty());
  EXPECT_EQ(fit.loaded.refused, "");
  EXPECT_EQ(RulesOf(fit, "x")->uid, "ns/uid-x");
}

TEST(SetFitTest, OnePolicyThatCannotBeKeptCostsNobodyElseAnything) {
  const crds::PolicySet held = Set({{"x", "limit: 8Mi"}, {"y", "limit: 8Mi"}});
  for (const char* bad :
       {"guarantee: 512Mi, limit: 25%", "guarantee: 2Gi", "limit: nonsense", "limit: 1Mi, later: 1"}) {
    const crds::PolicySet offered = Set({{"new", bad}, {"x", bad}, {"y", "limit: 16Mi"}});
    const SetFit fit = Fit(held, offered);
    EXPECT_EQ(LimitOf(fit, "x"), 8 * kMiB) << bad << ": what was in force stays";
    EXPECT_EQ(LimitOf(fit, "y"), 16 * kMiB) << bad;
    EXPECT_EQ(RulesOf(fit, "new"), nullptr) << bad;
    ASSERT_THAT(fit.refused, SizeIs(2)) << bad;
    EXPECT_EQ(fit.refused[0].key(), Key("new"));
    EXPECT_EQ(fit.refused[0].hash(), offered.objects().at(Key("new")).hash);
    EXPECT_EQ(fit.refused[0].held(), "");
    EXPECT_EQ(fit.refused[1].held(), held.objects().at(Key("x")).hash);
    EXPECT_EQ(fit.held.hashes(), Set({{"x", "limit: 8Mi"}, {"y", "limit: 16Mi"}}).hashes()) << "what is in force";
    EXPECT_THAT(fit.loaded.refused, HasSubstr(Key("x")));
  }
}

TEST(SetFitTest, AReasonSpeaksOfNoOtherTenant) {
  const crds::PolicySet held = Set({{"secret", "guarantee: 700Mi"}});
  crds::PolicySet offered = Set({{"secret", "guarantee: 700Mi"}, {"x", "guarantee: 600Mi"}});
  offered.Put(Key("y"), Manifest("y", "limit: 1Mi", ", ttl: {hbmSeconds: 1}"), "ns");
  const SetFit fit = Fit(held, offered);
  ASSERT_THAT(fit.refused, SizeIs(1));
  EXPECT_THAT(fit.refused[0].reason(), HasSubstr("dram guarantee 600Mi does not fit"));
  EXPECT_THAT(fit.refused[0].reason(), Not(HasSubstr("secret")));
  EXPECT_THAT(fit.refused[0].reason(), Not(HasSubstr("700")));
  EXPECT_NE(RulesOf(fit, "secret"), nullptr);
  EXPECT_NE(RulesOf(fit, "y"), nullptr);
}

// Half of what is asked for is in force beside the whole of what is not.
TEST(SetFitTest, WhatIsGivenUpIsThereForOthersInTheSameSet) {
  const crds::PolicySet held = Set({{"x", "guarantee: 800Mi"}});
  const SetFit fit = Fit(held, Set({{"x", "guarantee: 200Mi"}, {"y", "guarantee: 800Mi"}, {"z", "guarantee: 5Gi"}}));
  EXPECT_NE(RulesOf(fit, "y"), nullptr);
  EXPECT_THAT(fit.refused, SizeIs(1));
}

TEST(SetFitTest, WhoIsMadeAnewAndCannotBeKeptInheritsNothing) {
  const crds::PolicySet held = Set({{"x", "limit: 8Mi"}, {"y", "limit: 8Mi"}, {"z", "limit: 8Mi"}});
  crds::PolicySet offered;
  offered.Put(Key("x"), Manifest("x", "guarantee: 2Gi"), "another namespace");
  std::string anew = Manifest("y", "limit: 1Mi, later: 1");
  anew.replace(anew.find("uid-y"), 5, "uid-2");
  offered.Put(Key("y"), anew, "ns");
  offered.Put(Key("z"), "{", "ns");
  const SetFit fit = Fit(held, offered);
  EXPECT_THAT(fit.loaded.table->tenants(), IsEmpty());
  EXPECT_THAT(fit.refused, SizeIs(3));
  EXPECT_EQ(fit.held.Version(), crds::EmptyVersion());
}

TEST(SetFitTest, AKeyIsOfTheObjectUnderIt) {
  crds::PolicySet offered = Set({{"x", "limit: 8Mi"}});
  offered.Put(Key("impostor"), Manifest("x", "limit: 9Mi"), "ns");
  const SetFit fit = Fit({}, offered);
  EXPECT_EQ(LimitOf(fit, "x"), 8 * kMiB);
  EXPECT_THAT(fit.refused, SizeIs(1));
}

TEST(SetFitTest, ACapacityThatChangesWaitsForARestartAndNothingElseDoes) {
  crds::PolicySet held = Set({{"x", "limit: 50%"}});
  held.Put("KVNodePool//p", PoolManifest("dram: 512Mi"), "");
  crds::PolicySet offered = Set({{"x", "limit: 25%"}});
  offered.Put("KVNodePool//p", PoolManifest("dram: 1Gi", ", softCapPercent: 70"), "");
  const absl::StatusOr<SetFit> fit = FitSet(held, offered, kNode, policy::NodeCapacity{{0, 512 * kMiB, 0}});
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_TRUE(fit->loaded.capacity_waits);
  EXPECT_EQ(LimitOf(*fit, "x"), 128 * kMiB) << "a quarter of what there is";
  EXPECT_EQ(fit->loaded.table->soft_cap_percent(), 70u);
  ASSERT_THAT(fit->refused, SizeIs(1));
  EXPECT_EQ(fit->refused[0].key(), "KVNodePool//p");
  EXPECT_THAT(fit->refused[0].reason(), HasSubstr("restart"));
  EXPECT_THAT(fit->refused[0].reason(), HasSubstr("instead of")) << "what differs";
  EXPECT_EQ(fit->held.Version(), offered.Version()) << "and is what the next start begins with";
  const absl::StatusOr<SetFit> next = FitSet({}, fit->held, kNode, std::nullopt);
  EXPECT_EQ(LimitOf(*next, "x"), 256 * kMiB);
  EXPECT_FALSE(next->loaded.capacity_waits);
  EXPECT_THAT(next->refused, IsEmpty());
}

TEST(SetFitTest, WithoutAPoolThatCanBeReadThereIsNoSet) {
  crds::PolicySet offered = Set({{"x", "limit: 8Mi"}});
  offered.Put("KVNodePool//p", PoolManifest("dram: 1Gi, later: 1"), "");
  const absl::StatusOr<SetFit> fit = FitSet({}, offered, kNode, kNode);
  EXPECT_THAT(std::string(fit.status().message()), HasSubstr("KVNodePool//p"));
  crds::PolicySet two = Set({});
  two.Put("KVNodePool//p", PoolManifest("dram: 1Gi"), "");
  two.Put("KVNodePool//q", PoolManifest("dram: 1Gi"), "");
  EXPECT_FALSE(FitSet({}, two, kNode, kNode).ok());
}

TEST(SetFitTest, AReasonIsCutAtTheEndOfACharacter) {
  std::string text(511, 'a');
  text += "\xc3\xa4";
  EXPECT_EQ(CutReason(text), std::string(511, 'a'));
}

}  // namespace
}  // namespace kvartal::control
