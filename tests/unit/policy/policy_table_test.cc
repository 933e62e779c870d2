#include "daemon/policy/policy_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "crds/tenant_policy.h"
#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

crds::Quantity Q(const char* text) { return *crds::ParseQuantity(text); }

constexpr NodeCapacity kNode = {{0, kGiB, 4 * kGiB}};

crds::TenantPolicy Policy(const std::string& ns, uint32_t uid, const char* dram_guarantee = nullptr,
                          const char* dram_limit = "100Mi") {
  crds::TenantPolicy policy;
  policy.ns = ns;
  policy.name = "cache";
  policy.source = ns + ".yaml:1";
  policy.subjects.push_back({"", uid, ""});
  crds::PoolClaim claim;
  claim.pool_ref = "node";
  if (dram_guarantee != nullptr) claim.dram.guarantee = Q(dram_guarantee);
  if (dram_limit != nullptr) claim.dram.limit = Q(dram_limit);
  policy.pools.push_back(claim);
  return policy;
}

struct Built {
  std::shared_ptr<const PolicyTable> table;
  std::vector<std::string> warnings;
  std::string error;
};

Built Build(const std::vector<crds::TenantPolicy>& policies, const NodeCapacity& capacity = kNode) {
  Built built;
  auto table = PolicyTable::Build(policies, capacity, &built.warnings);
  if (table.ok()) {
    built.table = *table;
  } else {
    built.error = std::string(table.status().message());
  }
  return built;
}

TEST(PolicyTableTest, NothingIsATableToo) {
  const Built built = Build({});
  ASSERT_NE(built.table, nullptr) << built.error;
  EXPECT_THAT(built.table->tenants(), IsEmpty());
  EXPECT_EQ(built.table->FindByUid(0), nullptr);
  EXPECT_EQ(built.table->FindByName(""), nullptr);
  EXPECT_EQ(built.table->FindBySocket(""), nullptr);
  EXPECT_THAT(built.table->version(), SizeIs(16));
}

TEST(PolicyTableTest, TurnsAPolicyIntoRules) {
  crds::TenantPolicy policy = Policy("team-red", 1001, "25%", "50%");
  policy.subjects.push_back({"", std::nullopt, "red"});
  policy.sla_tier = "Premium";
  policy.pools[0].nvme.limit = Q("1536Mi");
  policy.ttl = {5, 60, 3600, false};
  policy.max_age_seconds = 7;
  policy.max_entries = 1000;
  policy.sessions_max = 3;
  const Built built = Build({policy});
  ASSERT_NE(built.table, nullptr) << built.error;
  EXPECT_THAT(built.warnings, IsEmpty());
  const TenantRules* rules = built.table->FindByUid(1001);
  ASSERT_NE(rules, nullptr);
  EXPECT_EQ(rules, built.table->FindBySocket("red"));
  EXPECT_EQ(rules, built.table->FindByName("team-red/cache"));
  EXPECT_EQ(rules->name, "team-red/cache");
  EXPECT_EQ(rules->uid, "team-red/cache") << "no UIDs were given";
  EXPECT_EQ(rules->sla, SlaTier::kPremium);
  EXPECT_EQ(rules->weight, 400u);
  EXPECT_EQ(rules->tier(TierKind::kDram).guarantee_bytes, kGiB / 4);
  EXPECT_EQ(rules->tier(TierKind::kDram).limit_bytes, kGiB / 2);
  EXPECT_EQ(rules->tier(TierKind::kNvme).guarantee_bytes, 0u);
  EXPECT_EQ(rules->tier(TierKind::kNvme).limit_bytes, 1536 * kMiB);
  EXPECT_EQ(rules->tier(TierKind::kHbm).limit_bytes, 0u) << "a tier that is not claimed";
  EXPECT_THAT(rules->ttl_ms, ElementsAre(5000u, 60000u, 3600000u));
  EXPECT_EQ(rules->on_expiry, OnExpiry::kDelete);
  EXPECT_EQ(rules->max_age_ms, 7000u);
  EXPECT_EQ(rules->max_entries, 1000u);
  EXPECT_EQ(rules->max_sessions, 3u);
  EXPECT_THAT(rules->uids, ElementsAre(1001u));
  EXPECT_THAT(rules->sockets, ElementsAre("red"));
}

TEST(PolicyTableTest, DefaultsFollowTheSlaTier) {
  for (const auto& [tier, weight, sla] :
       {std::tuple("Premium", 400u, SlaTier::kPremium), std::tuple("Standard", 200u, SlaTier::kStandard),
        std::tuple("Basic", 100u, SlaTier::kBasic)}) {
    crds::TenantPolicy policy = Policy("a", 1);
    policy.sla_tier = tier;
    EXPECT_EQ(Build({policy}).table->tenants()[0].weight, weight);
    EXPECT_EQ(Build({policy}).table->tenants()[0].sla, sla);
    policy.weight = 7;
    EXPECT_EQ(Build({policy}).table->tenants()[0].weight, 7u);
  }
}

TEST(PolicyTableTest, WithoutAnEntryCapThereAreTwiceAsManyEntriesAsTheLimitsHoldOfTheSmallestBlocks) {
  crds::TenantPolicy policy = Policy("a", 1, nullptr, "10Mi");
  EXPECT_EQ(Build({policy}).table->tenants()[0].max_entries, 2 * 10 * kMiB / kSlotAlignBytes);
  policy.pools[0].nvme.limit = Q("100Mi");
  EXPECT_EQ(Build({policy}).table->tenants()[0].max_entries, 2 * 110 * kMiB / kSlotAlignBytes);
  policy.max_entries = 7;
  EXPECT_EQ(Build({policy}).table->tenants()[0].max_entries, 7u);
  // Of a node that nobody described the limits may be anything.
  constexpr uint64_t kUnknown = crds::kUnknownCapacityBytes;
  const Built anywhere = Build({Policy("a", 1, "10Mi", nullptr)}, {{kUnknown, kUnknown, kUnknown}});
  ASSERT_NE(anywhere.table, nullptr) << anywhere.error;
  EXPECT_EQ(anywhere.table->tenants()[0].max_entries, static_cast<uint64_t>(kEntriesMax));
}

TEST(PolicyTableTest, AGuaranteeWithoutALimitMayUseTheWholeTier) {
  const Built built = Build({Policy("a", 1, "10Mi", nullptr)});
  EXPECT_EQ(built.table->tenants()[0].tier(TierKind::kDram).limit_bytes, kGiB);
  EXPECT_THAT(built.warnings, IsEmpty());
}

TEST(PolicyTableTest, IdentityNeedsBothUids) {
  crds::TenantPolicy policy = Policy("a", 1);
  policy.uid = "p-1";
  EXPECT_EQ(Build({policy}).table->tenants()[0].uid, "a/cache");
  policy.namespace_uid = "ns-1";
  EXPECT_EQ(Build({policy}).table->tenants()[0].uid, "ns-1/p-1");
}

TEST(PolicyTableTest, ASubjectHasOneOwner) {
  EXPECT_EQ(Build({Policy("a", 1), Policy("b", 1)}).error,
            "b.yaml:1: b/cache: uid 1 is already claimed by a.yaml:1: a/cache; it can have one owner only");
  crds::TenantPolicy red = Policy("a", 1), also_red = Policy("b", 2);
  red.subjects.push_back({"", std::nullopt, "red"});
  also_red.subjects.push_back({"", std::nullopt, "red"});
  EXPECT_THAT(Build({red, also_red}).error, HasSubstr("socket 'red' is already claimed by a.yaml:1"));
  crds::TenantPolicy twice = Policy("a", 1);
  twice.subjects.push_back({"", 1, ""});
  EXPECT_THAT(Build({twice}).error, HasSubstr("uid 1 is already claimed by a.yaml:1"));
}

TEST(PolicyTableTest, ANameAndAnIdentityHaveOneOwner) {
  EXPECT_THAT(Build({Policy("a", 1), Policy("a", 2)}).error, HasSubstr("the name 'a/cache' is already claimed by"));
  // UIDs that spell another tenant's name would inherit what it left on disk.
  crds::TenantPolicy impostor = Policy("b", 2);
  impostor.namespace_uid = "a";
  impostor.uid = "cache";
  EXPECT_THAT(Build({Policy("a", 1), impostor}).error, HasSubstr("the identity 'a/cache' is already claimed by"));
}

TEST(PolicyTableTest, GuaranteesFitTheCapacityToTheByte) {
  EXPECT_EQ(Build({Policy("a", 1, "512Mi", nullptr), Policy("b", 2, "50%", nullptr)}).error, "");
  const std::string error = Build({Policy("a", 1, "512Mi", nullptr), Policy("b", 2, "536870913", nullptr)}).error;
  EXPECT_THAT(error, HasSubstr("the guarantees in dram add up to 1073741825 bytes and the capacity is 1Gi"));
  EXPECT_THAT(error, HasSubstr("512Mi (a.yaml:1: a/cache)"));
  EXPECT_THAT(error, HasSubstr("(b.yaml:1: b/cache)"));
}

TEST(PolicyTableTest, ASumOfHugeGuaranteesDoesNotWrap) {
  const NodeCapacity huge = {{0, UINT64_MAX, 0}};
  std::vector<crds::TenantPolicy> policies;
  for (uint32_t i = 0; i < 5; ++i) policies.push_back(Policy(absl::StrCat("t", i), i, "7Ei", nullptr));
  EXPECT_THAT(Build(policies, huge).error, HasSubstr("the guarantees in dram add up to"));
  EXPECT_THAT(Build({Policy("a", 1, "7Ei", nullptr)}).error,
              HasSubstr("dram guarantee 7340032Ti does not fit into the capacity 1Gi"));
}

TEST(PolicyTableTest, GuaranteeAndLimitAreComparedInBytes) {
  EXPECT_THAT(Build({Policy("a", 1, "50%", "100Mi")}).error,
              HasSubstr("dram guarantee 512Mi is above the limit 100Mi at this node's capacity 1Gi"));
  EXPECT_EQ(Build({Policy("a", 1, "50%", "512Mi")}).error, "");
}

TEST(PolicyTableTest, OfANodeThatNobodyDescribedNoCapacityIsTold) {
  NodeCapacity unknown;
  unknown.bytes.fill(crds::kUnknownCapacityBytes);
  const Built mixed = Build({Policy("a", 1, "25%", "100Gi")}, unknown);
  EXPECT_EQ(mixed.error, "") << "a node of 400Gi takes it";
  EXPECT_THAT(mixed.warnings, ElementsAre(HasSubstr("dram guarantee 25% is above the limit 100Gi on a node with more "
                                                    "than 400Gi of dram, which refuses it")));
  EXPECT_THAT(Build({Policy("a", 1, nullptr, "2000Ti")}, unknown).warnings,
              ElementsAre(HasSubstr("dram limit 2000Ti is above the capacity; it is taken as what the node has")));
  EXPECT_THAT(Build({Policy("a", 1, "2000Ti", nullptr)}, unknown).error,
              HasSubstr("dram guarantee 2000Ti is more than any node has; lower it"));
  EXPECT_THAT(Build({Policy("a", 1, "20Ti", "1%")}, unknown).error,
              HasSubstr("dram guarantee 20Ti is above the limit 1% of any node; lower it"));
  EXPECT_THAT(Build({Policy("a", 1, "60%", nullptr), Policy("b", 2, "60%", nullptr)}, unknown).error,
              HasSubstr("the guarantees in dram add up to more than any node has: a.yaml:1: a/cache, b.yaml:1: "
                        "b/cache; lower them"));
  EXPECT_EQ(Build({Policy("a", 1, "60%", nullptr), Policy("b", 2, "40%", nullptr)}, unknown).error, "");
}

TEST(PolicyTableTest, AnUnusableLimitIsStatedAndStands) {
  const std::tuple<const char*, const char*, uint64_t> cases[] = {
      {"2Gi", "dram limit 2Gi is above the capacity; it is taken as 1Gi", kGiB},
      {"0", "dram limit is 0: nothing can be stored there", 0},
      {"2097151", "dram limit 2097151 bytes is below 2Mi, the least that holds one block", 2097151},
      {"1", "dram limit 1 bytes is below 2Mi", 1},
  };
  for (const auto& [limit, warning, bytes] : cases) {
    const Built built = Build({Policy("a", 1, nullptr, limit)});
    ASSERT_NE(built.table, nullptr) << built.error;
    ASSERT_THAT(built.warnings, SizeIs(1)) << limit;
    EXPECT_THAT(built.warnings[0], HasSubstr(std::string("a.yaml:1: a/cache: ") + warning));
    EXPECT_EQ(built.table->tenants()[0].tier(TierKind::kDram).limit_bytes, bytes) << limit;
  }
  EXPECT_THAT(Build({Policy("a", 1, nullptr, "2Mi")}).warnings, IsEmpty());
  EXPECT_THAT(Build({Policy("a", 1, nullptr, "1Gi")}).warnings, IsEmpty());
}

TEST(PolicyTableTest, AnNvmeLimitBelowOneSlotIsStated) {
  crds::TenantPolicy policy = Policy("a", 1);
  policy.pools[0].nvme.limit = Q("8191");
  EXPECT_THAT(Build({policy}).warnings, ElementsAre(HasSubstr("nvme limit 8191 bytes is below 8Ki")));
  policy.pools[0].nvme.limit = Q("8Ki");
  EXPECT_THAT(Build({policy}).warnings, IsEmpty());
}

TEST(PolicyTableTest, AClaimOnATierTheNodeLacksIsStatedAndAGuaranteeRefused) {
  crds::TenantPolicy policy = Policy("a", 1);
  policy.pools[0].hbm.limit = Q("10Gi");
  const Built built = Build({policy});
  EXPECT_THAT(built.warnings, ElementsAre(HasSubstr("hbm is claimed and this node has none")));
  EXPECT_EQ(built.table->tenants()[0].tier(TierKind::kHbm).limit_bytes, 0u);
  policy.pools[0].hbm.guarantee = Q("1Gi");
  EXPECT_THAT(Build({policy}).error, HasSubstr("hbm guarantee 1Gi does not fit into the capacity 0 bytes"));
}

TEST(PolicyTableTest, AServiceAccountIsOneTenantsAndOfThePolicysOwnNamespace) {
  crds::TenantPolicy red = Policy("red", 1), blue = Policy("blue", 2);
  red.subjects.push_back({"vllm", std::nullopt, ""});
  blue.subjects.push_back({"vllm", std::nullopt, ""});
  const Built built = Build({red, blue});
  ASSERT_NE(built.table, nullptr) << built.error;
  EXPECT_EQ(built.table->FindByServiceAccount("red", "vllm")->name, "red/cache");
  EXPECT_EQ(built.table->FindByServiceAccount("blue", "vllm")->name, "blue/cache");
  EXPECT_EQ(built.table->FindByServiceAccount("green", "vllm"), nullptr);
  crds::TenantPolicy again = Policy("red", 3);
  again.name = "second";
  again.subjects.push_back({"vllm", std::nullopt, ""});
  EXPECT_THAT(Build({red, again}).error, HasSubstr("service account 'red/vllm' is already claimed by"));
}

TEST(PolicyTableTest, WhatLetsNobodyInOrStoresNothingIsStated) {
  crds::TenantPolicy nobody = Policy("a", 1);
  nobody.subjects.clear();
  EXPECT_THAT(Build({nobody}).warnings, ElementsAre(HasSubstr("spec.subjects is empty: nobody may attach")));
  nobody.subjects.push_back({"vllm", std::nullopt, ""});
  EXPECT_THAT(Build({nobody}).warnings, IsEmpty()) << "who looks at tokens is the node's to say";
  crds::TenantPolicy nothing = Policy("a", 1);
  nothing.pools.clear();
  EXPECT_THAT(Build({nothing}).warnings, ElementsAre(HasSubstr("claims nothing on this node")));
  crds::TenantPolicy no_dram = Policy("a", 1, nullptr, nullptr);
  no_dram.pools[0].nvme.limit = Q("1Gi");
  EXPECT_THAT(Build({no_dram}).warnings, ElementsAre(HasSubstr("claims no dram: nothing can be stored")));
  crds::TenantPolicy no_entries = Policy("a", 1);
  no_entries.max_entries = 0;
  EXPECT_THAT(Build({no_entries}).warnings, ElementsAre(HasSubstr("maxEntries is 0")));
}

TEST(PolicyTableTest, SecurityThatCannotBeKeptIsRefused) {
  crds::TenantPolicy policy = Policy("a", 1);
  policy.encrypt_nvme = true;
  EXPECT_EQ(Build({policy}).error, "") << "nothing of it reaches NVMe";
  policy.pools[0].nvme.limit = Q("1Gi");
  EXPECT_THAT(Build({policy}).error, HasSubstr("encryption.nvme is Required and this node has no keys"));
  NodeCapacity with_keys = kNode;
  with_keys.encrypts_nvme = true;
  const Built kept = Build({policy}, with_keys);
  ASSERT_NE(kept.table, nullptr) << kept.error;
  EXPECT_TRUE(kept.table->tenants()[0].encrypt_nvme);
  policy.encrypt_nvme = false;
  EXPECT_NE(Build({policy}, with_keys).table->version(), kept.table->version());
}

TEST(PolicyTableTest, WhatHasNoEffectIsStated) {
  crds::TenantPolicy policy = Policy("a", 1);
  policy.share_group = "public";
  policy.codecs.emplace_back();
  EXPECT_THAT(Build({policy}).warnings,
              ElementsAre(HasSubstr("without effect on this node: spec.isolation.shareGroup, spec.codecs")));
}

TEST(PolicyTableTest, SeveralPoolsNeedTheNodesPool) {
  crds::TenantPolicy policy = Policy("a", 1);
  policy.pools.push_back(policy.pools[0]);
  EXPECT_THAT(Build({policy}).error,
              HasSubstr("spec.pools has 2 claims and it is not known which one holds on this node"));
}

TEST(PolicyTableTest, EveryMistakeOfTheSetIsToldAndNoTableMade) {
  crds::TenantPolicy above = Policy("c", 3, "50%", "1Mi");
  const Built built = Build({Policy("a", 1), Policy("b", 1), above});
  EXPECT_EQ(built.table, nullptr);
  EXPECT_THAT(built.warnings, IsEmpty());
  EXPECT_THAT(built.error, HasSubstr("uid 1 is already claimed"));
  EXPECT_THAT(built.error, HasSubstr("c.yaml:1: c/cache: dram guarantee 512Mi is above the limit"));
}

TEST(PolicyTableTest, TooManyTenantsAreRefused) {
  std::vector<crds::TenantPolicy> policies;
  for (uint32_t i = 0; i < kTenantsMax; ++i) policies.push_back(Policy(absl::StrCat("t", i), i));
  EXPECT_EQ(Build(policies).error, "");
  policies.push_back(Policy("one-more", 1u << 30));
  EXPECT_THAT(Build(policies).error, HasSubstr("a node takes at most 4096"));
}

TEST(PolicyTableTest, TheVersionIsTheContentWhateverTheOrder) {
  std::vector<crds::TenantPolicy> policies = {Policy("c", 3), Policy("a", 1), Policy("b", 2)};
  policies[0].subjects.push_back({"", 30, ""});
  const Built built = Build(policies);
  ASSERT_NE(built.table, nullptr);
  EXPECT_EQ(built.table->tenants()[0].name, "a/cache") << "sorted by name";
  std::reverse(policies.begin(), policies.end());
  std::reverse(policies[2].subjects.begin(), policies[2].subjects.end());
  for (crds::TenantPolicy& policy : policies) policy.source = "elsewhere.yaml:7";
  EXPECT_EQ(Build(policies).table->version(), built.table->version());
}

TEST(PolicyTableTest, TheVersionMovesWithEveryRule) {
  TenantRules rules;
  rules.name = rules.uid = "a/b";
  rules.uids = {1, 23};
  rules.sockets = {"s"};
  const auto version_with = [&](auto change) {
    TenantRules changed = rules;
    change(changed);
    return PolicyTable::FromRules({changed}, kNode)->version();
  };
  const std::vector<std::string> versions = {
      version_with([](TenantRules&) {}),
      version_with([](TenantRules& r) { r.name = "a/c"; }),
      version_with([](TenantRules& r) { r.uid = "x/y"; }),
      version_with([](TenantRules& r) { r.sla = SlaTier::kBasic; }),
      version_with([](TenantRules& r) { r.weight = 1; }),
      version_with([](TenantRules& r) { r.tier(TierKind::kDram).guarantee_bytes = 1; }),
      version_with([](TenantRules& r) { r.tier(TierKind::kDram).limit_bytes = 1; }),
      version_with([](TenantRules& r) { r.tier(TierKind::kNvme).limit_bytes = 1; }),
      version_with([](TenantRules& r) { r.tier(TierKind::kHbm).limit_bytes = 1; }),
      version_with([](TenantRules& r) { r.ttl_ms[0] = 1; }),
      version_with([](TenantRules& r) { r.ttl_ms[1] = 1; }),
      version_with([](TenantRules& r) { r.ttl_ms[2] = 1; }),
      version_with([](TenantRules& r) { r.on_expiry = OnExpiry::kDelete; }),
      version_with([](TenantRules& r) { r.max_age_ms = 1; }),
      version_with([](TenantRules& r) { r.max_entries = 1; }),
      version_with([](TenantRules& r) { r.max_sessions = 1; }),
      version_with([](TenantRules& r) { r.uids = {12, 3}; }),
      version_with([](TenantRules& r) { r.sockets = {"t"}; }),
      version_with([](TenantRules& r) { r.service_accounts = {"team/vllm"}; }),
      version_with([](TenantRules& r) { r.sockets = {"s\",\"t"}; }),
      version_with([](TenantRules& r) { r.sockets = {"s", "t"}; }),
  };
  std::vector<std::string> distinct = versions;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  EXPECT_EQ(distinct.size(), versions.size());
  EXPECT_EQ(version_with([](TenantRules&) {}), versions[0]);
}

TEST(PolicyTableTest, FromRulesKeepsTheOrderAndTheCapacity) {
  TenantRules b, a;
  b.name = "b";
  a.name = "a";
  const auto table = PolicyTable::FromRules({b, a}, kNode);
  EXPECT_EQ(table->tenants()[0].name, "b");
  EXPECT_EQ(table->FindByName("a"), &table->tenants()[1]);
  EXPECT_EQ(table->capacity().bytes, kNode.bytes);
}

TEST(PolicyTableDeathTest, FromRulesInsistsOnOneOwner) {
  TenantRules a, b;
  a.name = "a";
  b.name = "a";
  EXPECT_DEATH(PolicyTable::FromRules({a, b}, kNode), "by_name_");
  b.name = "b";
  a.uids = b.uids = {1};
  EXPECT_DEATH(PolicyTable::FromRules({a, b}, kNode), "by_uid_");
}

}  // namespace
}  // namespace kvartal::policy
