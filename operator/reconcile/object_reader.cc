#include "operator/reconcile/object_reader.h"

#include "absl/strings/str_cat.h"
#include "crds/field_reader.h"
#include "crds/yaml_reader.h"
#include "operator/kube/json_fields.h"

namespace kvartal::reconcile {
namespace {

using crds::YamlNode;
using kube::TextAt;
using nlohmann::json;

// JSON has no lines: a finding says "<kind> <name>:1:1" and its field.
YamlNode NodeOf(const json& value) {
  YamlNode node;
  if (value.is_object()) {
    node.kind = YamlNode::Kind::kMap;
    for (const auto& [key, field] : value.items()) node.entries.push_back({key, {}, NodeOf(field)});
  } else if (value.is_array()) {
    node.kind = YamlNode::Kind::kList;
    for (const json& item : value) node.items.push_back(NodeOf(item));
  } else if (!value.is_null()) {
    node.kind = YamlNode::Kind::kScalar;
    node.quoted = value.is_string();
    node.text = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return node;
}

// What of an object we read. A server may add fields to metadata that we have never heard of.
YamlNode ReadablePartOf(const json& object) {
  json part = {{"apiVersion", TextAt(object, {"apiVersion"})}, {"kind", TextAt(object, {"kind"})}};
  for (const char* field : {"name", "namespace", "uid"}) {
    const std::string text = TextAt(object, {"metadata", field});
    if (!text.empty()) part["metadata"][field] = text;
  }
  if (const json* spec = kube::FieldAt(object, {"spec"})) part["spec"] = *spec;
  return NodeOf(part);
}

Labels LabelsAt(const json& object, std::initializer_list<const char*> path) {
  Labels labels;
  const json* map = kube::FieldAt(object, path);
  if (map == nullptr || !map->is_object()) return labels;
  for (const auto& [key, value] : map->items()) {
    if (value.is_string()) labels.emplace(key, value.get<std::string>());
  }
  return labels;
}

std::string PlaceOf(const char* kind, const json& object) {
  return absl::StrCat(kind, " ", TextAt(object, {"metadata", "name"}));
}

}  // namespace

PolicyObject ReadPolicy(const json& object) {
  PolicyObject read;
  read.ns = TextAt(object, {"metadata", "namespace"});
  read.name = TextAt(object, {"metadata", "name"});
  read.uid = TextAt(object, {"metadata", "uid"});
  read.created = TextAt(object, {"metadata", "creationTimestamp"});
  crds::Findings findings(PlaceOf("TenantKVPolicy", object));
  crds::TenantPolicy policy = crds::ReadTenantPolicy(ReadablePartOf(object), &findings);
  if (const absl::Status status = findings.status(); status.ok()) {
    read.wanted = std::move(policy);
  } else {
    read.why_unreadable = std::string(status.message());
  }
  return read;
}

PoolObject ReadPool(const json& object) {
  crds::Findings findings(PlaceOf("KVNodePool", object));
  PoolObject read;
  read.created = TextAt(object, {"metadata", "creationTimestamp"});
  read.pool = crds::ReadNodePool(ReadablePartOf(object), &findings);
  if (const absl::Status status = findings.status(); !status.ok()) {
    read.why_unreadable = std::string(status.message());
    read.pool = {};
    read.pool.name = TextAt(object, {"metadata", "name"});
    // What of the selector cannot be read selects too many nodes rather than too few: they keep what they have.
    read.pool.node_labels = LabelsAt(object, {"spec", "nodeSelector"});
  }
  return read;
}

ClusterNode ReadNode(const json& object) {
  return {TextAt(object, {"metadata", "name"}), LabelsAt(object, {"metadata", "labels"})};
}

ClusterNamespace ReadNamespace(const json& object) {
  return {TextAt(object, {"metadata", "name"}), TextAt(object, {"metadata", "uid"}),
          LabelsAt(object, {"metadata", "labels"})};
}

bool IsBeingDeleted(const json& object) { return !TextAt(object, {"metadata", "deletionTimestamp"}).empty(); }

bool IsPaused(const json& object) { return TextAt(object, {"metadata", "annotations", kPausedAnnotation}) == "true"; }

}  // namespace kvartal::reconcile
