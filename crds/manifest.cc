#include "crds/manifest.h"

#include "absl/strings/str_cat.h"
#include "crds/field_reader.h"
#include "crds/yaml_reader.h"

namespace kvartal::crds {
namespace {

// The text of a field that decides how the rest is read; "" when it is not plain text.
std::string TextAt(const YamlNode& object, std::string_view key) {
  const YamlNode* value = object.Find(key);
  return value == nullptr ? "" : value->text;
}

void ReadObject(const YamlNode& object, Findings* findings, Manifests* manifests) {
  if (object.kind != YamlNode::Kind::kMap) {
    findings->Add(object.position, "", "must be an object with apiVersion, kind, metadata and spec");
    return;
  }
  const std::string kind = TextAt(object, "kind");
  const std::string api_version = TextAt(object, "apiVersion");
  const auto position_of = [&](std::string_view key) {
    const YamlNode* value = object.Find(key);
    return value == nullptr ? object.position : value->position;
  };
  if (api_version != kApiVersion) {
    findings->Add(position_of("apiVersion"), "apiVersion",
                  absl::StrCat(Shown(api_version), " is not served; allowed: ", kApiVersion));
    return;
  }
  if (kind == "TenantKVPolicy") {
    manifests->policies.push_back(ReadTenantPolicy(object, findings));
  } else if (kind == "KVNodePool") {
    manifests->pools.push_back(ReadNodePool(object, findings));
  } else {
    findings->Add(position_of("kind"), "kind",
                  absl::StrCat(Shown(kind), " is not served; allowed: TenantKVPolicy, KVNodePool"));
  }
}

}  // namespace

absl::StatusOr<Manifests> ParseManifests(std::string_view yaml, const std::string& file_name) {
  KV_ASSIGN_OR_RETURN(const std::vector<YamlNode> documents, ReadYaml(yaml, file_name));
  Findings findings(file_name);
  Manifests manifests;
  for (const YamlNode& document : documents) ReadObject(document, &findings, &manifests);
  KV_RETURN_IF_ERROR(findings.status());
  return manifests;
}

std::string UidIn(std::string_view yaml) {
  const absl::StatusOr<std::vector<YamlNode>> documents = ReadYaml(yaml, "");
  if (!documents.ok() || documents->size() != 1) return "";
  const YamlNode* metadata = documents->front().Find("metadata");
  return metadata == nullptr ? "" : TextAt(*metadata, "uid");
}

}  // namespace kvartal::crds
