#include "daemon/control/policy_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "crds/quantity.h"
#include "daemon/base/limits.h"

namespace kvartal::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::string kExamples = std::string(KVARTAL_SOURCE_DIR) + "/crds/examples/";
constexpr policy::NodeCapacity kNode = {{0, kGiB, 4 * kGiB}};

std::string PolicyText(const std::string& ns, int uid, const std::string& pools) {
  std::stringstream text;
  text << "apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: cache, namespace: " << ns << "}\n"
       << "spec: {subjects: [{uid: " << uid << "}], pools: " << pools << "}\n";
  return text.str();
}

std::string PoolText(const std::string& name, const std::string& spec) {
  return "apiVersion: kvartal.dev/v1alpha1\nkind: KVNodePool\nmetadata: {name: " + name + "}\nspec: " + spec + "\n";
}

class PolicySourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "policy_source_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }
  LoadedPolicy Load() {
    auto loaded = LoadPolicyFolder(folder_, kNode);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded)
                       : LoadedPolicy{policy::PolicyTable::FromRules({}, kNode), {}, "", false, ""};
  }
  std::string Error() {
    const auto loaded = LoadPolicyFolder(folder_, kNode);
    return loaded.ok() ? "accepted" : std::string(loaded.status().message());
  }
  static uint64_t DramLimit(const LoadedPolicy& loaded, const std::string& tenant) {
    const policy::TenantRules* rules = loaded.table->FindByName(tenant);
    return rules == nullptr ? UINT64_MAX : rules->tier(TierKind::kDram).limit_bytes;
  }

  std::string folder_;
};

TEST_F(PolicySourceTest, AnEmptyFolderIsAnEmptyTableAndIsStated) {
  const LoadedPolicy loaded = Load();
  EXPECT_THAT(loaded.table->tenants(), IsEmpty());
  EXPECT_THAT(loaded.warnings, ElementsAre(HasSubstr("has no TenantKVPolicy: nobody may attach")));
}

TEST_F(PolicySourceTest, ManifestsInSubfoldersAreNotReadAndThatIsStated) {
  std::filesystem::create_directory(folder_ + "/..2026_01_01");
  EXPECT_THAT(Load().warnings, ElementsAre(Not(HasSubstr("subfolders")))) << "a ConfigMap's own";
  std::filesystem::create_directory(folder_ + "/team");
  Write("team/a.yaml", PolicyText("a", 1, "[]"));
  const LoadedPolicy loaded = Load();
  EXPECT_THAT(loaded.table->tenants(), IsEmpty());
  EXPECT_THAT(loaded.warnings, ElementsAre(HasSubstr("nobody may attach; it has subfolders (1), which are not looked "
                                                     "into: name the one that is meant")));
}

TEST_F(PolicySourceTest, AFolderThatIsNotThereIsAnError) {
  std::filesystem::remove_all(folder_);
  const std::string error = Error();
  EXPECT_THAT(error, HasSubstr(folder_));
  EXPECT_THAT(error, HasSubstr("create it, or name the one that is meant"));
}

TEST_F(PolicySourceTest, ReadsYamlAndYmlAndNothingElse) {
  Write("b.yml", PolicyText("b", 2, "[{poolRef: p, perNode: {dram: {limit: 64Mi}}}]"));
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 25%}}}]"));
  Write("notes.txt", "not: [yaml");
  Write(".hidden.yaml", "not: [yaml");
  Write("a.yaml~", "not: [yaml");
  const LoadedPolicy loaded = Load();
  ASSERT_THAT(loaded.table->tenants(), SizeIs(2));
  EXPECT_EQ(DramLimit(loaded, "a/cache"), kGiB / 4);
  EXPECT_EQ(DramLimit(loaded, "b/cache"), 64 * kMiB);
  EXPECT_THAT(loaded.warnings, IsEmpty());
}

TEST_F(PolicySourceTest, FollowsTheLinksOfAMountedConfigMap) {
  std::filesystem::create_directory(folder_ + "/..2026_01_01");
  Write("..2026_01_01/a.yaml", PolicyText("a", 1, "[]"));
  std::filesystem::create_symlink("..2026_01_01", folder_ + "/..data");
  std::filesystem::create_symlink("..data/a.yaml", folder_ + "/a.yaml");
  EXPECT_THAT(Load().table->tenants(), SizeIs(1));
}

TEST_F(PolicySourceTest, OneBadFileRefusesTheWholeSetAndEveryBadFileIsNamed) {
  Write("a.yaml", PolicyText("a", 1, "[]"));
  Write("b.yaml", "kind: Pod\n");
  Write("c.yaml", PolicyText("c", 3, "[{poolRef: p, perNode: {dram: {limit: 1.5Gi}}}]"));
  const std::string error = Error();
  EXPECT_THAT(error, HasSubstr(folder_ + "/b.yaml:1:1: apiVersion: '' is not served"));
  EXPECT_THAT(error, HasSubstr(folder_ + "/c.yaml:4:75: spec.pools[0].perNode.dram.limit: '1.5Gi' is not a size"));
}

TEST_F(PolicySourceTest, WhatIsNotAFileIsAnError) {
  std::filesystem::create_directory(folder_ + "/a.yaml");
  EXPECT_THAT(Error(), HasSubstr("/a.yaml: is not a regular file"));
  std::filesystem::remove(folder_ + "/a.yaml");
  std::filesystem::create_symlink("nowhere", folder_ + "/a.yaml");
  EXPECT_THAT(Error(), HasSubstr("/a.yaml: cannot be opened"));
}

TEST_F(PolicySourceTest, APoolBoundsWhatPercentagesAreOf) {
  Write("pool.yaml", PoolText("p", "{capacity: {dram: 512Mi}}"));
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 50%}, nvme: {limit: 50%}}}]"));
  const LoadedPolicy loaded = Load();
  EXPECT_EQ(DramLimit(loaded, "a/cache"), 256 * kMiB);
  EXPECT_EQ(loaded.table->tenants()[0].tier(TierKind::kNvme).limit_bytes, 2 * kGiB) << "the pool does not state nvme";
  EXPECT_EQ(loaded.table->capacity().bytes[TierIndex(TierKind::kDram)], 512 * kMiB);
  EXPECT_THAT(loaded.warnings, IsEmpty());
}

TEST_F(PolicySourceTest, APoolLargerThanTheNodeIsStatedAndTheNodeHolds) {
  Write("pool.yaml", PoolText("p", "{capacity: {dram: 2Gi}}"));
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 50%}}}]"));
  const LoadedPolicy loaded = Load();
  EXPECT_EQ(DramLimit(loaded, "a/cache"), kGiB / 2);
  EXPECT_THAT(loaded.warnings,
              ElementsAre(HasSubstr("KVNodePool p: states 2147483648 bytes of dram and this node is configured")));
}

TEST_F(PolicySourceTest, OfANodeThatNobodyDescribedThePoolSaysTheCapacity) {
  Write("pool.yaml", PoolText("p", "{capacity: {dram: 2000Ti}}"));
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 50%}}}]"));
  policy::NodeCapacity unknown;
  unknown.bytes.fill(crds::kUnknownCapacityBytes);
  const auto loaded = LoadPolicyFolder(folder_, unknown);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(DramLimit(*loaded, "a/cache"), 1000 * kTiB);
  EXPECT_THAT(loaded->warnings, IsEmpty());
}

TEST_F(PolicySourceTest, TheNodesPoolPicksTheClaim) {
  Write("pool.yaml", PoolText("p", "{capacity: {}}"));
  Write("a.yaml",
        PolicyText("a", 1,
                   "[{poolRef: q, perNode: {dram: {limit: 8Mi}}}, {poolRef: p, perNode: {dram: {limit: 16Mi}}}]"));
  Write("b.yaml", PolicyText("b", 2, "[{poolRef: q, perNode: {dram: {limit: 8Mi}}}]"));
  const LoadedPolicy loaded = Load();
  EXPECT_EQ(DramLimit(loaded, "a/cache"), 16 * kMiB);
  EXPECT_EQ(DramLimit(loaded, "b/cache"), 0u);
  EXPECT_THAT(loaded.warnings,
              ElementsAre(HasSubstr("b/cache: spec.pools[0].poolRef 'q' is not this node's KVNodePool 'p'"),
                          HasSubstr("b/cache: spec.pools claims nothing on this node")));
}

TEST_F(PolicySourceTest, WithoutAPoolSeveralClaimsAreAmbiguous) {
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: q}, {poolRef: p}]"));
  EXPECT_THAT(Error(), HasSubstr("a.yaml:1: a/cache: spec.pools has 2 claims"));
}

TEST_F(PolicySourceTest, WhatOnlyAnOperatorAppliesIsStated) {
  Write("pool.yaml", PoolText("p", "{capacity: {dram: 1Gi}, shareGroups: [a], unknownTenants: PerNamespace}"));
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 8Mi}}}]"));
  EXPECT_THAT(
      Load().warnings,
      ElementsAre(HasSubstr(
          "without effect where policy comes from a folder: spec.unknownTenants (unknown tenants are rejected), "
          "spec.shareGroups")));
}

TEST_F(PolicySourceTest, APolicyAboveItsGrantRefusesTheSetWithFileLineFieldAndReason) {
  Write("pool.yaml", PoolText("p",
                              "{capacity: {dram: 1Gi}, grants: [{namespaceSelector: {matchLabels: "
                              "{kubernetes.io/metadata.name: a}}, maxLimit: {dram: 25%}}, {maxLimit: {dram: 8Mi}}]}"));
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 256Mi}}}]"));
  Write("b.yaml", PolicyText("b", 2, "[{poolRef: p, perNode: {dram: {limit: 8Mi}}}]"));
  EXPECT_EQ(DramLimit(Load(), "a/cache"), 256 * kMiB) << "a quarter of the pool's capacity, to the byte";
  Write("b.yaml", "# a line\n" + PolicyText("b", 2, "[{poolRef: p, perNode: {dram: {limit: 9Mi}}}]"));
  EXPECT_THAT(Error(), HasSubstr("/b.yaml:2: b/cache: spec.pools[0].perNode.dram.limit: 9437184 bytes is above "
                                 "maxLimit.dram 8388608 bytes of spec.grants[1] of KVNodePool p (" +
                                 folder_ + "/pool.yaml:1); lower it"));
}

TEST_F(PolicySourceTest, AGrantByALabelThatAFolderDoesNotHaveIsForNobodyAndStated) {
  Write("pool.yaml",
        PoolText("p", "{capacity: {dram: 1Gi}, grants: [{namespaceSelector: {matchLabels: {team: a}}}, {}]}"));
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 8Mi}}}]"));
  EXPECT_THAT(Load().warnings, ElementsAre(HasSubstr("spec.grants[0].namespaceSelector asks for the label 'team'")));
  Write("pool.yaml", PoolText("p", "{capacity: {dram: 1Gi}, grants: [{namespaceSelector: {matchLabels: {team: a}}}]}"));
  EXPECT_THAT(Error(), HasSubstr("metadata.namespace: no grant of KVNodePool p"));
  EXPECT_THAT(Error(), HasSubstr("so this grant is for nobody here; use kubernetes.io/metadata.name"))
      << "what explains a refusal is told with it";
}

TEST_F(PolicySourceTest, ThePoolsSoftCapIsTheTables) {
  Write("a.yaml", PolicyText("a", 1, "[{poolRef: p, perNode: {dram: {limit: 8Mi}}}]"));
  const LoadedPolicy without = Load();
  EXPECT_EQ(without.table->soft_cap_percent(), policy::kSoftCapPercentDefault);
  Write("pool.yaml", PoolText("p", "{capacity: {dram: 1Gi}, softCapPercent: 30}"));
  const LoadedPolicy with = Load();
  EXPECT_EQ(with.table->soft_cap_percent(), 30u);
  EXPECT_NE(with.table->version(), without.table->version()) << "another rule is another version";
}

TEST_F(PolicySourceTest, EveryBadFileIsTold) {
  for (size_t i = 0; i < kYamlFindingsMax + 3; ++i) Write(std::to_string(100 + i) + ".yaml", "kind: Pod\n");
  const std::string error = Error();
  for (size_t i = 0; i < kYamlFindingsMax + 3; ++i)
    EXPECT_THAT(error, HasSubstr("/" + std::to_string(100 + i) + ".yaml:"));
}

TEST_F(PolicySourceTest, TheSetSaysWhichPoolItHas) {
  Write("a.yaml", PolicyText("a", 1, "[]"));
  EXPECT_EQ(Load().pool, "");
  Write("pool.yaml", "# a line\n" + PoolText("p", "{capacity: {dram: 1Gi}}"));
  EXPECT_EQ(Load().pool, folder_ + "/pool.yaml:2: KVNodePool p");
}

TEST(CapacityWaits, NamesEachTierThatDiffers) {
  const std::string why = CapacityWaits({{0, 2 * kGiB, 4 * kGiB}}, {{0, kGiB, 4 * kGiB}});
  EXPECT_THAT(why, HasSubstr("dram 2Gi instead of 1Gi; restart kvartald"));
  EXPECT_THAT(why, ::testing::Not(HasSubstr("nvme")));
}

TEST_F(PolicySourceTest, TooManyFilesAreRefused) {
  for (size_t i = 0; i <= kPolicyFilesMax; ++i) Write(std::to_string(i) + ".yaml", "");
  EXPECT_THAT(Error(), HasSubstr("1025 manifests; a policy folder may have at most 1024"));
}

TEST_F(PolicySourceTest, TheVersionDoesNotDependOnHowFilesAreCut) {
  const std::string a = PolicyText("a", 1, "[]"), b = PolicyText("b", 2, "[]");
  Write("1.yaml", a);
  Write("2.yaml", b);
  const std::string version = Load().table->version();
  std::filesystem::remove(folder_ + "/2.yaml");
  Write("1.yaml", b + "---\n" + a);
  EXPECT_EQ(Load().table->version(), version);
  Write("1.yaml", b);
  EXPECT_NE(Load().table->version(), version);
}

TEST(PolicyExamplesTest, TheDemoLoadsWithoutAWarning) {
  const auto loaded = LoadPolicyFolder(kExamples + "demo", kNode);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->warnings, IsEmpty());
  ASSERT_THAT(loaded->table->tenants(), SizeIs(3));
  uint64_t dram_limits = 0;
  for (const auto& [name, uid, socket, sla] :
       {std::tuple("team-red/cache", 1001u, "red", policy::SlaTier::kPremium),
        std::tuple("team-green/cache", 1002u, "green", policy::SlaTier::kStandard),
        std::tuple("team-blue/cache", 1003u, "blue", policy::SlaTier::kBasic)}) {
    const policy::TenantRules* rules = loaded->table->FindByName(name);
    ASSERT_NE(rules, nullptr) << name;
    EXPECT_EQ(rules, loaded->table->FindByUid(uid));
    EXPECT_EQ(rules, loaded->table->FindBySocket(socket));
    EXPECT_EQ(rules->sla, sla);
    EXPECT_GT(rules->tier(TierKind::kNvme).limit_bytes, rules->tier(TierKind::kDram).limit_bytes);
    dram_limits += rules->tier(TierKind::kDram).limit_bytes;
  }
  EXPECT_LE(dram_limits, kGiB);
}

TEST(PolicyExamplesTest, TheWorkedExampleIsWithinItsGrantsAtAnyCapacity) {
  for (const uint64_t dram_bytes : {64 * kMiB, kGiB, 100 * kGiB}) {
    const auto loaded = LoadPolicyFolder(kExamples + "worked", {{0, dram_bytes, 0}});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT(loaded->warnings, IsEmpty());
    const policy::TenantRules* premium = loaded->table->FindByName("premium/cache");
    ASSERT_NE(premium, nullptr);
    EXPECT_EQ(premium->tier(TierKind::kDram).guarantee_bytes, dram_bytes * 30 / 100);
    EXPECT_EQ(premium->weight, 400u);
    EXPECT_EQ(loaded->table->FindByName("trial/cache")->tier(TierKind::kDram).limit_bytes, dram_bytes);
  }
}

TEST(PolicyExamplesTest, EveryGoodFileIsASetOfItsOwnAndTogetherTheyAreNone) {
  constexpr policy::NodeCapacity kLarge = {{80 * kGiB, 1024 * kGiB, 16 * kTiB}, true};
  for (const auto& entry : std::filesystem::directory_iterator(kExamples + "good")) {
    const auto loaded = LoadPolicyFiles({entry.path().string()}, kLarge);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
  }
  EXPECT_THAT(LoadPolicyFolder(kExamples + "good", kLarge).status().message(),
              HasSubstr("research/silver: spec.slaTier: Standard is above maxSlaTier Basic"));
}

TEST(PolicyExamplesTest, EveryBadSetIsRefusedAsItExpects) {
  size_t sets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kExamples + "bad_sets")) {
    ++sets;
    const std::string folder = entry.path().string();
    std::ifstream first(folder + "/a.yaml");
    std::string line;
    std::getline(first, line);
    const std::string marker = "# expect: ";
    ASSERT_EQ(line.rfind(marker, 0), 0u) << folder;
    const auto loaded = LoadPolicyFolder(folder, kNode);
    ASSERT_FALSE(loaded.ok()) << folder << " was accepted";
    EXPECT_THAT(loaded.status().message(), HasSubstr(line.substr(marker.size()))) << folder;
  }
  EXPECT_GE(sets, 6u);
}

}  // namespace
}  // namespace kvartal::control
