#include "crds/policy_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "crds/manifest.h"
#include "crds/manifest_writer.h"
#include "crds/yaml_reader.h"

namespace kvartal::crds {
namespace {

using ::testing::HasSubstr;

// Every example that is good, of either kind.
Manifests AllExamples() {
  Manifests all;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(KVARTAL_SOURCE_DIR) + "/crds/examples/good")) {
    if (entry.path().extension() != ".yaml") continue;
    absl::StatusOr<Manifests> read = ParseManifests(ReadYamlFile(entry.path()).value(), entry.path());
    EXPECT_TRUE(read.ok()) << read.status();
    for (TenantPolicy& policy : read->policies) all.policies.push_back(std::move(policy));
    for (NodePool& pool : read->pools) all.pools.push_back(std::move(pool));
  }
  return all;
}

TEST(ManifestWriterTest, WhatIsWrittenReadsAsWhatItWas) {
  const Manifests examples = AllExamples();
  ASSERT_GE(examples.policies.size(), 5u);
  for (const TenantPolicy& policy : examples.policies) {
    const std::string text = WriteTenantPolicy(policy);
    const absl::StatusOr<Manifests> read = ParseManifests(text, "written");
    ASSERT_TRUE(read.ok()) << text << "\n" << read.status();
    const TenantPolicy& again = read->policies.at(0);
    EXPECT_EQ(WriteTenantPolicy(again), text);
    EXPECT_EQ(again.uid, policy.uid);
    EXPECT_EQ(again.subjects.size(), policy.subjects.size());
    EXPECT_EQ(again.weight, policy.weight);
    EXPECT_EQ(again.max_entries, policy.max_entries);
    EXPECT_EQ(again.gpu_group, policy.gpu_group);
    EXPECT_EQ(again.codecs.size(), policy.codecs.size());
  }
}

// A field that the writer forgot would come back with its default.
TEST(ManifestWriterTest, EveryFieldSurvives) {
  const char* const kAllFields =
      R"({apiVersion: kvartal.dev/v1alpha1, kind: TenantKVPolicy, metadata: {name: a, namespace: red, uid: u-1},
          spec: {subjects: [{serviceAccountName: s}, {uid: 7}, {socket: door}], slaTier: Premium, weight: 7,
                 pools: [{poolRef: p, perGpu: {hbm: {guarantee: 1Gi, limit: 2Gi}},
                          perNode: {dram: {guarantee: 10%}, nvme: {limit: 3Ti}}}],
                 ttl: {hbmSeconds: 1, dramSeconds: 2, nvmeSeconds: 3, onExpiry: Delete}, retention: {maxAgeSeconds: 4},
                 index: {maxEntries: 5}, isolation: {gpuGroup: g, dedicatedMover: true, shareGroup: h},
                 encryption: {nvme: Required}, codecs: [{models: ["m"], dram: FP8E4M3, nvme: FP8E5M2}],
                 sessions: {max: 6}}})";
  const TenantPolicy policy = ParseManifests(kAllFields, "all")->policies.at(0);
  const TenantPolicy again = ParseManifests(WriteTenantPolicy(policy), "written")->policies.at(0);
  EXPECT_EQ(again.uid, "u-1");
  EXPECT_EQ(again.subjects.at(0).service_account_name, "s");
  EXPECT_EQ(again.subjects.at(1).uid, 7u);
  EXPECT_EQ(again.subjects.at(2).socket, "door");
  EXPECT_EQ(again.sla_tier, "Premium");
  EXPECT_EQ(again.weight, 7);
  EXPECT_EQ(again.pools.at(0).hbm.guarantee->bytes, 1u << 30);
  EXPECT_EQ(again.pools.at(0).hbm.limit->bytes, 2u << 30);
  EXPECT_EQ(again.pools.at(0).dram.guarantee->percent, 10u);
  EXPECT_FALSE(again.pools.at(0).dram.limit.has_value());
  EXPECT_EQ(again.pools.at(0).nvme.limit->bytes, uint64_t{3} << 40);
  EXPECT_EQ(again.ttl.hbm_seconds + 10 * again.ttl.dram_seconds + 100 * again.ttl.nvme_seconds, 321);
  EXPECT_FALSE(again.ttl.demote_on_expiry);
  EXPECT_EQ(again.max_age_seconds, 4);
  EXPECT_EQ(again.max_entries, 5);
  EXPECT_EQ(again.gpu_group, "g");
  EXPECT_TRUE(again.dedicated_mover);
  EXPECT_EQ(again.share_group, "h");
  EXPECT_TRUE(again.encrypt_nvme);
  EXPECT_EQ(again.codecs.at(0).dram, "FP8E4M3");
  EXPECT_EQ(again.codecs.at(0).nvme, "FP8E5M2");
  EXPECT_EQ(again.sessions_max, 6);
}

TEST(ManifestWriterTest, ANodeIsToldOfItsPoolWhatItActsOnAndNoGrants) {
  NodePool pool;
  pool.name = "p";
  pool.has_dram = true;
  pool.dram.bytes = 1 << 30;
  pool.soft_cap_percent = 60;
  pool.grants.emplace_back();
  pool.node_labels = {{"gpu", "h200"}};
  const NodePool read = ParseManifests(WriteNodeOfPool(pool), "written")->pools.at(0);
  EXPECT_EQ(read.name, "p");
  EXPECT_EQ(read.dram.bytes, 1u << 30);
  EXPECT_FALSE(read.has_nvme);
  EXPECT_EQ(read.soft_cap_percent, 60);
  EXPECT_TRUE(read.grants.empty());
  EXPECT_TRUE(read.node_labels.empty());
}

PolicySet Set(const std::map<std::string, std::string>& objects) {
  PolicySet set;
  for (const auto& [key, manifest] : objects) set.Put(key, manifest, "ns-uid");
  return set;
}

TEST(PolicySetTest, ADeltaCarriesWhatDiffersAndMakesTheTarget) {
  const PolicySet from = Set({{"a", "1"}, {"b", "2"}, {"c", "3"}}), to = Set({{"a", "1"}, {"b", "9"}, {"d", "4"}});
  const sync::v1::Update delta = to.DeltaFrom(from.hashes());
  EXPECT_EQ(delta.changed_size(), 2);
  EXPECT_EQ(delta.removed_size(), 1);
  const absl::StatusOr<PolicySet> made = from.With(delta);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->Version(), to.Version());
  EXPECT_EQ(made->objects().at("b").manifest, "9");
  // From nothing, and to nothing.
  EXPECT_EQ(from.With(to.DeltaFrom({}))->Version(), to.Version());
  EXPECT_EQ(from.With(PolicySet().DeltaFrom(from.hashes()))->Version(), EmptyVersion());
}

TEST(PolicySetTest, ADeltaOfAnotherSetOrToAnotherVersionIsRefused) {
  const PolicySet from = Set({{"a", "1"}}), other = Set({{"a", "2"}}), to = Set({{"a", "3"}, {"b", "4"}});
  EXPECT_THAT(std::string(other.With(to.DeltaFrom(from.hashes())).status().message()), HasSubstr("the changes are of"));
  sync::v1::Update lost = to.DeltaFrom(from.hashes());
  lost.mutable_changed()->RemoveLast();
  EXPECT_THAT(std::string(from.With(lost).status().message()), HasSubstr("are said to give"));
}

TEST(PolicySetTest, TheVersionTellsWhatNamespaceAnObjectIsOf) {
  PolicySet one, other;
  one.Put("a", "1", "first");
  other.Put("a", "1", "again");
  EXPECT_NE(one.Version(), other.Version());
  EXPECT_EQ(VersionOf(one.hashes()), one.Version());
}

}  // namespace
}  // namespace kvartal::crds
