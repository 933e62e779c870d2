// The schemas for the API server and the C++ that reads the same objects say the same: each key, enum, bound and
// default.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "crds/manifest.h"
#include "crds/yaml_reader.h"
#include "daemon/base/limits.h"

namespace kvartal::crds {
namespace {

using ::testing::HasSubstr;

// A dotted path into `node`; a number is a place in a list.
const YamlNode* Find(const YamlNode* node, const std::string& path) {
  size_t start = 0;
  while (node != nullptr && start <= path.size()) {
    const size_t dot = std::min(path.find('.', start), path.size());
    const std::string step = path.substr(start, dot - start);
    if (node->kind == YamlNode::Kind::kList) {
      const size_t place = std::stoul(step);
      node = place < node->items.size() ? &node->items[place] : nullptr;
    } else {
      node = node->Find(step);
    }
    start = dot + 1;
  }
  return node;
}

class SchemaTest : public ::testing::Test {
 protected:
  void Load(const std::string& file) {
    const auto text = ReadYamlFile(std::string(KVARTAL_SOURCE_DIR) + "/crds/" + file);
    ASSERT_TRUE(text.ok()) << text.status();
    auto documents = ReadYaml(*text, file);
    ASSERT_TRUE(documents.ok()) << documents.status();
    ASSERT_EQ(documents->size(), 1u);
    crd_ = std::move(documents->front());
  }
  std::string At(const std::string& path) const {
    const YamlNode* node = Find(&crd_, path);
    return node == nullptr ? "absent" : node->text;
  }
  // The schema of a field of spec; "pools.[].perNode" goes into a list.
  const YamlNode* Schema(const std::string& field) const {
    std::string path = "spec.versions.0.schema.openAPIV3Schema.properties.spec";
    size_t start = 0;
    while (start <= field.size()) {
      const size_t dot = std::min(field.find('.', start), field.size());
      const std::string step = field.substr(start, dot - start);
      path += step == "[]" ? ".items" : ".properties." + step;
      start = dot + 1;
    }
    return Find(&crd_, path);
  }
  std::string Of(const std::string& field, const std::string& keyword) const {
    const YamlNode* schema = Schema(field);
    const YamlNode* value = schema == nullptr ? nullptr : schema->Find(keyword);
    return value == nullptr ? "absent" : value->text;
  }

  YamlNode crd_;
};

TEST_F(SchemaTest, NamesOfThePolicy) {
  Load("tenantkvpolicy.yaml");
  EXPECT_EQ(absl::StrCat(At("spec.group"), "/", At("spec.versions.0.name")), kApiVersion);
  EXPECT_EQ(At("spec.names.kind"), "TenantKVPolicy");
  EXPECT_EQ(At("spec.names.shortNames.0"), "tkvp");
  EXPECT_EQ(At("spec.names.categories.0"), "kvartal");
  EXPECT_EQ(At("spec.scope"), "Namespaced");
  EXPECT_EQ(At("metadata.name"), absl::StrCat(At("spec.names.plural"), ".", At("spec.group")));
  EXPECT_NE(Find(&crd_, "spec.versions.0.subresources.status"), nullptr);
}

TEST_F(SchemaTest, NamesOfThePool) {
  Load("kvnodepool.yaml");
  EXPECT_EQ(absl::StrCat(At("spec.group"), "/", At("spec.versions.0.name")), kApiVersion);
  EXPECT_EQ(At("spec.names.kind"), "KVNodePool");
  EXPECT_EQ(At("spec.names.shortNames.0"), "kvnp");
  EXPECT_EQ(At("spec.names.categories.0"), "kvartal");
  EXPECT_EQ(At("spec.scope"), "Cluster");
  EXPECT_EQ(At("metadata.name"), absl::StrCat(At("spec.names.plural"), ".", At("spec.group")));
}

TEST_F(SchemaTest, BoundsOfThePolicyAreTheNamedLimits) {
  Load("tenantkvpolicy.yaml");
  const std::tuple<const char*, const char*, int64_t> bounds[] = {
      {"subjects", "maxItems", kSubjectsMax},
      {"subjects.[].uid", "minimum", 0},
      {"subjects.[].uid", "maximum", int64_t{UINT32_MAX} - 1},
      {"weight", "minimum", 1},
      {"weight", "maximum", kWeightMax},
      {"pools", "maxItems", kPoolClaimsMax},
      {"ttl.hbmSeconds", "maximum", kSecondsMax},
      {"ttl.dramSeconds", "maximum", kSecondsMax},
      {"ttl.nvmeSeconds", "maximum", kSecondsMax},
      {"retention.maxAgeSeconds", "maximum", kSecondsMax},
      {"index.maxEntries", "minimum", 0},
      {"index.maxEntries", "maximum", kEntriesMax},
      {"codecs", "maxItems", kCodecsMax},
      {"codecs.[].models", "maxItems", kCodecModelsMax},
      {"sessions.max", "minimum", 1},
      {"sessions.max", "maximum", kSessionsMax},
  };
  for (const auto& [field, keyword, bound] : bounds) EXPECT_EQ(Of(field, keyword), std::to_string(bound)) << field;
}

TEST_F(SchemaTest, BoundsOfThePoolAreTheNamedLimits) {
  Load("kvnodepool.yaml");
  EXPECT_EQ(Of("grants", "maxItems"), std::to_string(kGrantsMax));
  EXPECT_EQ(Of("grants.[].gpuGroups", "maxItems"), std::to_string(kGroupsMax));
  EXPECT_EQ(Of("gpuGroups", "maxItems"), std::to_string(kGroupsMax));
  EXPECT_EQ(Of("gpuGroups.[].gpus", "maxItems"), std::to_string(kGroupGpusMax));
  EXPECT_EQ(Of("shareGroups", "maxItems"), std::to_string(kGroupsMax));
  EXPECT_EQ(Of("nodeSelector", "maxProperties"), std::to_string(kMatchLabelsMax));
  EXPECT_EQ(Of("grants.[].namespaceSelector.matchLabels", "maxProperties"), std::to_string(kMatchLabelsMax));
}

TEST_F(SchemaTest, DefaultsOfThePolicyAreTheOnesInCode) {
  Load("tenantkvpolicy.yaml");
  const TenantPolicy policy;
  EXPECT_EQ(Of("slaTier", "default"), policy.sla_tier);
  EXPECT_EQ(Of("ttl.hbmSeconds", "default"), std::to_string(policy.ttl.hbm_seconds));
  EXPECT_EQ(Of("ttl.dramSeconds", "default"), std::to_string(policy.ttl.dram_seconds));
  EXPECT_EQ(Of("ttl.nvmeSeconds", "default"), std::to_string(policy.ttl.nvme_seconds));
  EXPECT_EQ(Of("ttl.onExpiry", "default"), policy.ttl.demote_on_expiry ? "Demote" : "Delete");
  EXPECT_EQ(Of("retention.maxAgeSeconds", "default"), std::to_string(policy.max_age_seconds));
  EXPECT_EQ(Of("isolation.dedicatedMover", "default"), policy.dedicated_mover ? "true" : "false");
  EXPECT_EQ(Of("encryption.nvme", "default"), policy.encrypt_nvme ? "Required" : "None");
  EXPECT_EQ(Of("sessions.max", "default"), std::to_string(policy.sessions_max));
  EXPECT_EQ(Of("codecs.[].dram", "default"), TenantPolicy::Codec{}.dram);
}

TEST_F(SchemaTest, DefaultsOfThePoolAreTheOnesInCode) {
  Load("kvnodepool.yaml");
  EXPECT_EQ(Of("softCapPercent", "default"), std::to_string(NodePool{}.soft_cap_percent));
  EXPECT_EQ(Of("unknownTenants", "default"), NodePool{}.unknown_tenants);
  EXPECT_EQ(Of("grants.[].maxSlaTier", "default"), Grant{}.max_sla_tier);
}

// What the reader names as allowed where it meets an unknown key or word must be what the schema has.
std::string AllowedOf(const std::string& spec, const std::string& kind) {
  const bool namespaced = kind == "TenantKVPolicy";
  const auto manifests =
      ParseManifests(absl::StrCat("apiVersion: kvartal.dev/v1alpha1\nkind: ", kind, "\nmetadata: {name: a",
                                  namespaced ? ", namespace: b" : "", "}\nspec: ", spec, "\n"),
                     "a.yaml");
  std::string message(manifests.status().message());
  const size_t at = message.find("'zzz'");
  if (at == std::string::npos) return "no finding about zzz in: " + message;
  message = message.substr(at, message.find('\n', at) - at);
  const std::string marker = "allowed: ";
  return message.substr(message.find(marker) + marker.size());
}

std::string KeysOf(const YamlNode* schema) {
  if (schema == nullptr || schema->Find("properties") == nullptr) return "no such schema";
  std::string keys;
  for (const YamlNode::Entry& entry : schema->Find("properties")->entries)
    absl::StrAppend(&keys, keys.empty() ? "" : ", ", entry.key);
  return keys;
}

std::string EnumOf(const YamlNode* schema) {
  if (schema == nullptr || schema->Find("enum") == nullptr) return "no such enum";
  std::string words;
  for (const YamlNode& item : schema->Find("enum")->items)
    absl::StrAppend(&words, words.empty() ? "" : ", ", item.text);
  return words;
}

TEST_F(SchemaTest, KeysAndEnumsOfThePolicy) {
  Load("tenantkvpolicy.yaml");
  const YamlNode* spec = Find(&crd_, "spec.versions.0.schema.openAPIV3Schema.properties.spec");
  EXPECT_EQ(AllowedOf("{zzz: 1}", "TenantKVPolicy"), KeysOf(spec));
  const std::pair<const char*, const char*> keys[] = {
      {"subjects.[]", "{subjects: [{uid: 1, zzz: 1}]}"},
      {"pools.[]", "{pools: [{poolRef: a, zzz: 1}]}"},
      {"pools.[].perGpu", "{pools: [{poolRef: a, perGpu: {zzz: 1}}]}"},
      {"pools.[].perNode", "{pools: [{poolRef: a, perNode: {zzz: 1}}]}"},
      {"pools.[].perNode.dram", "{pools: [{poolRef: a, perNode: {dram: {limit: 1, zzz: 1}}}]}"},
      {"ttl", "{ttl: {zzz: 1}}"},
      {"retention", "{retention: {zzz: 1}}"},
      {"index", "{index: {zzz: 1}}"},
      {"isolation", "{isolation: {zzz: 1}}"},
      {"encryption", "{encryption: {zzz: 1}}"},
      {"codecs.[]", "{codecs: [{models: [], zzz: 1}]}"},
      {"sessions", "{sessions: {zzz: 1}}"},
  };
  for (const auto& [field, yaml] : keys) EXPECT_EQ(AllowedOf(yaml, "TenantKVPolicy"), KeysOf(Schema(field))) << field;
  const std::pair<const char*, const char*> enums[] = {
      {"slaTier", "{slaTier: zzz}"},
      {"ttl.onExpiry", "{ttl: {onExpiry: zzz}}"},
      {"encryption.nvme", "{encryption: {nvme: zzz}}"},
      {"codecs.[].dram", "{codecs: [{models: [], dram: zzz}]}"},
      {"codecs.[].nvme", "{codecs: [{models: [], nvme: zzz}]}"},
  };
  for (const auto& [field, yaml] : enums) EXPECT_EQ(AllowedOf(yaml, "TenantKVPolicy"), EnumOf(Schema(field))) << field;
}

TEST_F(SchemaTest, KeysAndEnumsOfThePool) {
  Load("kvnodepool.yaml");
  const YamlNode* spec = Find(&crd_, "spec.versions.0.schema.openAPIV3Schema.properties.spec");
  EXPECT_EQ(AllowedOf("{capacity: {}, zzz: 1}", "KVNodePool"), KeysOf(spec));
  const std::pair<const char*, const char*> keys[] = {
      {"capacity", "{capacity: {zzz: 1}}"},
      {"grants.[]", "{capacity: {}, grants: [{zzz: 1}]}"},
      {"grants.[].maxLimit", "{capacity: {}, grants: [{maxLimit: {zzz: 1}}]}"},
      {"grants.[].maxGuarantee", "{capacity: {}, grants: [{maxGuarantee: {zzz: 1}}]}"},
      {"gpuGroups.[]", "{capacity: {}, gpuGroups: [{name: a, gpus: [], zzz: 1}]}"},
  };
  for (const auto& [field, yaml] : keys) EXPECT_EQ(AllowedOf(yaml, "KVNodePool"), KeysOf(Schema(field))) << field;
  EXPECT_EQ(AllowedOf("{capacity: {}, unknownTenants: zzz}", "KVNodePool"), EnumOf(Schema("unknownTenants")));
  EXPECT_EQ(AllowedOf("{capacity: {}, grants: [{maxSlaTier: zzz}]}", "KVNodePool"),
            EnumOf(Schema("grants.[].maxSlaTier")));
}

// The API server refuses a schema with an unbounded list, text without a maximum or a list without a type under our
// rules.
void CheckBounded(const YamlNode& schema, const std::string& path, size_t* lists) {
  // A comma in an unquoted description of a one-line mapping would make a keyword of its second half.
  static const std::set<std::string> kKeywords = {"type",
                                                  "format",
                                                  "description",
                                                  "default",
                                                  "enum",
                                                  "minimum",
                                                  "maximum",
                                                  "minLength",
                                                  "maxLength",
                                                  "pattern",
                                                  "minProperties",
                                                  "maxProperties",
                                                  "maxItems",
                                                  "items",
                                                  "required",
                                                  "properties",
                                                  "additionalProperties",
                                                  "anyOf",
                                                  "x-kubernetes-list-type",
                                                  "x-kubernetes-list-map-keys",
                                                  "x-kubernetes-int-or-string",
                                                  "x-kubernetes-map-type",
                                                  "x-kubernetes-preserve-unknown-fields",
                                                  "x-kubernetes-validations"};
  for (const YamlNode::Entry& entry : schema.entries)
    EXPECT_TRUE(kKeywords.contains(entry.key)) << path << ": " << entry.key;
  const YamlNode* type = schema.Find("type");
  const std::string kind = type != nullptr && type->kind == YamlNode::Kind::kScalar ? type->text : "";
  if (kind == "array") {
    ++*lists;
    EXPECT_NE(schema.Find("maxItems"), nullptr) << path;
    EXPECT_NE(schema.Find("x-kubernetes-list-type"), nullptr) << path;
    ASSERT_NE(schema.Find("items"), nullptr) << path;
    CheckBounded(*schema.Find("items"), path + "[]", lists);
  } else if (kind == "string" || schema.Find("x-kubernetes-int-or-string") != nullptr) {
    EXPECT_TRUE(schema.Find("maxLength") != nullptr || schema.Find("enum") != nullptr ||
                schema.Find("format") != nullptr)
        << path;
  } else if (kind == "object") {
    EXPECT_TRUE(schema.Find("properties") != nullptr || schema.Find("maxProperties") != nullptr) << path;
  } else {
    EXPECT_TRUE(kind == "integer" || kind == "boolean") << path << " has type '" << kind << "'; floats are not allowed";
  }
  if (const YamlNode* values = schema.Find("additionalProperties")) CheckBounded(*values, path + ".*", lists);
  if (const YamlNode* properties = schema.Find("properties")) {
    for (const YamlNode::Entry& entry : properties->entries) CheckBounded(entry.value, path + "." + entry.key, lists);
  }
}

TEST_F(SchemaTest, EveryListAndTextIsBounded) {
  for (const char* file : {"tenantkvpolicy.yaml", "kvnodepool.yaml"}) {
    Load(file);
    size_t lists = 0;
    for (const char* part : {"spec", "status"}) {
      const YamlNode* schema = Find(&crd_, absl::StrCat("spec.versions.0.schema.openAPIV3Schema.properties.", part));
      ASSERT_NE(schema, nullptr);
      CheckBounded(*schema, part, &lists);
    }
    EXPECT_GE(lists, 5u) << file;
  }
}

TEST_F(SchemaTest, TheRulesOfCodeAreRulesOfTheSchema) {
  Load("tenantkvpolicy.yaml");
  const auto rule_of = [&](const std::string& field) {
    return Find(Schema(field), "x-kubernetes-validations.0.message");
  };
  ASSERT_NE(rule_of("subjects.[]"), nullptr);
  EXPECT_THAT(rule_of("subjects.[]")->text, HasSubstr("exactly one of serviceAccountName, uid, socket"));
  ASSERT_NE(rule_of("pools.[].perNode.dram"), nullptr);
  EXPECT_THAT(rule_of("pools.[].perNode.dram")->text, HasSubstr("guarantee is above limit"));
  EXPECT_THAT(At("spec.versions.0.schema.openAPIV3Schema.properties.spec.x-kubernetes-validations.0.message"),
              HasSubstr("Basic may not have an hbm guarantee"));
}

}  // namespace
}  // namespace kvartal::crds
