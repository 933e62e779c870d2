#include "crds/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/base/limits.h"

namespace kvartal::crds {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::string kExamples = std::string(KVARTAL_SOURCE_DIR) + "/crds/examples/";

std::string FileText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Manifests ParseExample(const std::string& name) {
  const auto manifests = ParseManifests(FileText(kExamples + name), name);
  EXPECT_TRUE(manifests.ok()) << manifests.status();
  return manifests.value_or(Manifests{});
}

TEST(ManifestExamplesTest, EveryGoodOneParses) {
  const auto files = FilesIn(kExamples + "good");
  ASSERT_GE(files.size(), 4u);
  for (const std::string& path : files) {
    const auto manifests = ParseManifests(FileText(path), path);
    ASSERT_TRUE(manifests.ok()) << manifests.status();
    EXPECT_FALSE(manifests->policies.empty()) << path;
  }
}

TEST(ManifestExamplesTest, EveryBadOneIsRefusedAsItExpects) {
  const auto files = FilesIn(kExamples + "bad");
  ASSERT_GE(files.size(), 50u);
  for (const std::string& path : files) {
    const std::string text = FileText(path);
    const std::string marker = "# expect: ";
    ASSERT_EQ(text.rfind(marker, 0), 0u) << path << " must start with '" << marker << "'";
    const std::string expected = text.substr(marker.size(), text.find('\n') - marker.size());
    const auto manifests = ParseManifests(text, path);
    ASSERT_FALSE(manifests.ok()) << path << " was accepted";
    EXPECT_EQ(manifests.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(manifests.status().message(), HasSubstr(expected)) << path;
    EXPECT_THAT(manifests.status().message(), HasSubstr(path + ":")) << "the error names its file";
    const std::string message(manifests.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << "one mistake, one finding: " << message;
  }
}

TEST(ManifestTest, ReadsEveryFieldOfAPolicy) {
  const Manifests manifests = ParseExample("good/full.yaml");
  ASSERT_THAT(manifests.policies, SizeIs(1));
  const TenantPolicy& policy = manifests.policies[0];
  EXPECT_EQ(policy.name, "gold");
  EXPECT_EQ(policy.ns, "finance");
  ASSERT_THAT(policy.subjects, SizeIs(2));
  EXPECT_EQ(policy.subjects[1].service_account_name, "sglang.router");
  EXPECT_FALSE(policy.subjects[0].uid.has_value());
  EXPECT_EQ(policy.sla_tier, "Premium");
  EXPECT_EQ(policy.weight, 800);
  ASSERT_THAT(policy.pools, SizeIs(2));
  EXPECT_EQ(policy.pools[0].pool_ref, "h200");
  EXPECT_EQ(policy.pools[0].hbm.guarantee->bytes, 10 * kGiB);
  EXPECT_EQ(policy.pools[0].hbm.limit->bytes, 20 * kGiB);
  EXPECT_EQ(policy.pools[0].dram.guarantee->bytes, 64 * kGiB);
  EXPECT_TRUE(policy.pools[0].dram.limit->is_percent);
  EXPECT_EQ(policy.pools[0].dram.limit->percent, 25u);
  EXPECT_FALSE(policy.pools[0].nvme.guarantee.has_value());
  EXPECT_EQ(policy.pools[0].nvme.limit->bytes, 2 * kTiB);
  EXPECT_EQ(policy.pools[1].dram.guarantee->percent, 10u);
  EXPECT_FALSE(policy.pools[1].hbm.limit.has_value());
  EXPECT_EQ(policy.ttl.hbm_seconds, 30);
  EXPECT_FALSE(policy.ttl.demote_on_expiry);
  EXPECT_EQ(policy.max_age_seconds, 604800);
  EXPECT_EQ(policy.max_entries, 5000000);
  EXPECT_EQ(policy.gpu_group, "finance");
  EXPECT_TRUE(policy.dedicated_mover);
  EXPECT_EQ(policy.share_group, "public-prompts");
  EXPECT_TRUE(policy.encrypt_nvme);
  ASSERT_THAT(policy.codecs, SizeIs(1));
  EXPECT_THAT(policy.codecs[0].models, ElementsAre("meta-llama/*", "*"));
  EXPECT_EQ(policy.codecs[0].dram, "None");
  EXPECT_EQ(policy.codecs[0].nvme, "FP8E4M3");
  EXPECT_EQ(policy.sessions_max, 128);
  EXPECT_EQ(policy.source, "good/full.yaml:28") << "where the second document starts";
}

TEST(ManifestTest, ReadsEveryFieldOfAPool) {
  const Manifests manifests = ParseExample("good/full.yaml");
  ASSERT_THAT(manifests.pools, SizeIs(1));
  const NodePool& pool = manifests.pools[0];
  EXPECT_EQ(pool.name, "h200");
  EXPECT_EQ(pool.node_labels.at("node.kubernetes.io/instance-type"), "p5en.48xlarge");
  EXPECT_EQ(pool.hbm_per_gpu.bytes, 40 * kGiB);
  EXPECT_EQ(pool.dram.bytes, 512 * kGiB);
  EXPECT_EQ(pool.nvme.bytes, 8 * kTiB);
  EXPECT_TRUE(pool.has_hbm && pool.has_dram && pool.has_nvme);
  EXPECT_EQ(pool.soft_cap_percent, 50);
  EXPECT_EQ(pool.unknown_tenants, "Reject");
  ASSERT_THAT(pool.grants, SizeIs(2));
  EXPECT_EQ(pool.grants[0].match_labels.at("kubernetes.io/metadata.name"), "finance");
  EXPECT_EQ(pool.grants[0].max_guarantee.dram->percent, 25u);
  EXPECT_EQ(pool.grants[0].max_limit.nvme->bytes, 4 * kTiB);
  EXPECT_FALSE(pool.grants[0].max_guarantee.nvme.has_value());
  EXPECT_THAT(pool.grants[0].gpu_groups, ElementsAre("finance"));
  EXPECT_THAT(pool.grants[1].match_labels, IsEmpty());
  EXPECT_EQ(pool.grants[1].max_sla_tier, "Basic");
  ASSERT_THAT(pool.gpu_groups, SizeIs(1));
  EXPECT_TRUE(pool.gpu_groups[0].exclusive);
  EXPECT_THAT(pool.gpu_groups[0].gpus, SizeIs(3));
  EXPECT_THAT(pool.share_groups, ElementsAre("public-prompts"));
  EXPECT_EQ(pool.nvme_write_budget->bytes, 500000000u);
}

TEST(ManifestTest, AnEmptySpecHasTheDefaults) {
  const Manifests manifests = ParseExample("good/minimal.yaml");
  ASSERT_THAT(manifests.policies, SizeIs(1));
  const TenantPolicy& policy = manifests.policies[0];
  EXPECT_THAT(policy.subjects, IsEmpty());
  EXPECT_THAT(policy.pools, IsEmpty());
  EXPECT_EQ(policy.sla_tier, "Standard");
  EXPECT_FALSE(policy.weight.has_value());
  EXPECT_EQ(policy.ttl.hbm_seconds, 30);
  EXPECT_EQ(policy.ttl.dram_seconds, 600);
  EXPECT_EQ(policy.ttl.nvme_seconds, 86400);
  EXPECT_TRUE(policy.ttl.demote_on_expiry);
  EXPECT_EQ(policy.max_age_seconds, 0);
  EXPECT_FALSE(policy.max_entries.has_value());
  EXPECT_FALSE(policy.encrypt_nvme);
  EXPECT_EQ(policy.sessions_max, 64);
}

TEST(ManifestTest, WhatAClusterAddedIsNotRead) {
  const Manifests manifests = ParseExample("good/from-a-cluster.yaml");
  ASSERT_THAT(manifests.policies, SizeIs(1));
  EXPECT_EQ(manifests.policies[0].uid, "3f0c9e6e-8d5b-4a59-9d0c-6f2f0f8f1a11");
}

TEST(ManifestTest, SeveralDocumentsAndEmptyOnes) {
  const Manifests manifests = ParseExample("good/several-documents.yaml");
  ASSERT_THAT(manifests.policies, SizeIs(2));
  EXPECT_EQ(manifests.policies[0].pools[0].dram.limit->percent, 25u);
  EXPECT_EQ(manifests.policies[1].pools[0].dram.limit->bytes, kGiB) << "JSON is YAML";
  EXPECT_THAT(manifests.policies[1].source, EndsWith(":11"));
  const auto nothing = ParseManifests("# nothing here\n", "a.yaml");
  ASSERT_TRUE(nothing.ok());
  EXPECT_THAT(nothing->policies, IsEmpty());
}

TEST(ManifestTest, EveryMistakeOfAFileIsToldAtOnce) {
  const auto manifests = ParseManifests(
      "apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: a, namespace: b}\n"
      "spec:\n  weight: -1\n  ttl: {hbmSeconds: x}\n---\napiVersion: kvartal.dev/v1alpha1\nkind: KVNodePool\nmetadata: "
      "{name: P}\n"
      "spec: {capacity: {dram: 1.5Gi}}\n",
      "a.yaml");
  ASSERT_FALSE(manifests.ok());
  const std::string message(manifests.status().message());
  for (const char* fragment : {"a.yaml:5:11: spec.weight", "a.yaml:6:21: spec.ttl.hbmSeconds",
                               "a.yaml:10:18: metadata.name", "a.yaml:11:25: spec.capacity.dram"}) {
    EXPECT_THAT(message, HasSubstr(fragment));
  }
}

TEST(ManifestTest, OneBadObjectRefusesTheWholeFile) {
  const std::string good = FileText(kExamples + "good/minimal.yaml");
  EXPECT_TRUE(ParseManifests(good, "a").ok());
  EXPECT_FALSE(ParseManifests(good + "---\nkind: Pod\n", "a").ok());
}

TEST(ManifestTest, BasicMayHaveAnHbmLimit) {
  EXPECT_TRUE(
      ParseManifests("apiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: a, namespace: b}\n"
                     "spec: {slaTier: Basic, pools: [{poolRef: p, perGpu: {hbm: {limit: 1Gi}}}]}\n",
                     "a.yaml")
          .ok());
}

}  // namespace
}  // namespace kvartal::crds
