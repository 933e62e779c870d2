#include "crds/node_pool.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "crds/field_reader.h"
#include "crds/object_meta.h"
#include "daemon/base/limits.h"

namespace kvartal::crds {
namespace {

constexpr std::array<std::string_view, 3> kSlaTiers = {"Premium", "Standard", "Basic"};
constexpr std::array<std::string_view, 2> kUnknownTenants = {"Reject", "PerNamespace"};

void ReadCapacity(FieldReader& capacity, NodePool* pool) {
  const auto read = [&](const char* key, Quantity* quantity, bool* has) {
    if (const auto size = capacity.Size(key, Percent::kRefused)) {
      *quantity = *size;
      *has = true;
    }
  };
  read("hbmPerGpu", &pool->hbm_per_gpu, &pool->has_hbm);
  read("dram", &pool->dram, &pool->has_dram);
  read("nvme", &pool->nvme, &pool->has_nvme);
}

void ReadBound(FieldReader& grant, const char* key, GrantBound* bound) {
  grant.Object(key, [&](FieldReader& reader) {
    bound->hbm = reader.Size("hbm", Percent::kAllowed);
    bound->dram = reader.Size("dram", Percent::kAllowed);
    bound->nvme = reader.Size("nvme", Percent::kAllowed);
  });
}

void ReadGrant(FieldReader& reader, NodePool* pool) {
  Grant grant;
  reader.Object("namespaceSelector", [&](FieldReader& selector) {
    selector.Require("matchLabels");
    grant.match_labels = selector.TextMap("matchLabels", kMatchLabelsMax);
  });
  grant.max_sla_tier = reader.OneOf("maxSlaTier", kSlaTiers).value_or(grant.max_sla_tier);
  ReadBound(reader, "maxGuarantee", &grant.max_guarantee);
  ReadBound(reader, "maxLimit", &grant.max_limit);
  grant.gpu_groups = reader.Texts("gpuGroups", kGroupsMax, kDnsLabel);
  grant.share_groups = reader.Texts("shareGroups", kGroupsMax, kDnsLabel);
  pool->grants.push_back(std::move(grant));
}

void ReadGpuGroup(FieldReader& reader, NodePool* pool) {
  NodePool::GpuGroup group;
  reader.Require("name");
  group.name = reader.Text("name", kDnsLabel).value_or("");
  const bool taken = std::any_of(pool->gpu_groups.begin(), pool->gpu_groups.end(),
                                 [&](const NodePool::GpuGroup& other) { return other.name == group.name; });
  if (taken && !group.name.empty()) reader.Fail("name", absl::StrCat("GPU group '", group.name, "' is listed twice"));
  group.exclusive = reader.Bool("exclusive").value_or(group.exclusive);
  reader.Require("gpus", "GPU UUIDs, indexes in quotes, or MIG device UUIDs");
  group.gpus = reader.Texts("gpus", kGroupGpusMax, kShortText);
  pool->gpu_groups.push_back(std::move(group));
}

void ReadSpec(FieldReader& spec, NodePool* pool) {
  pool->node_labels = spec.TextMap("nodeSelector", kMatchLabelsMax);
  spec.Require("capacity", "what Kvartal may use of a node: hbmPerGpu, dram, nvme");
  spec.Object("capacity", [&](FieldReader& capacity) { ReadCapacity(capacity, pool); });
  pool->soft_cap_percent = spec.Integer("softCapPercent", 1, 100).value_or(pool->soft_cap_percent);
  pool->unknown_tenants = spec.OneOf("unknownTenants", kUnknownTenants).value_or(pool->unknown_tenants);
  spec.Objects("grants", kGrantsMax, [&](FieldReader& grant) { ReadGrant(grant, pool); });
  spec.Objects("gpuGroups", kGroupsMax, [&](FieldReader& group) { ReadGpuGroup(group, pool); });
  pool->share_groups = spec.Texts("shareGroups", kGroupsMax, kDnsLabel);
  pool->nvme_write_budget = spec.Size("nvmeWriteBudget", Percent::kRefused);
}

}  // namespace

NodePool ReadNodePool(const YamlNode& object, Findings* findings) {
  NodePool pool;
  pool.source = findings->PlaceOf(object.position);
  FieldReader reader(object, "", findings);
  pool.name = ReadObjectMeta(reader, Scope::kCluster).name;
  reader.Require("spec");
  reader.Object("spec", [&](FieldReader& spec) { ReadSpec(spec, &pool); });
  return pool;
}

}  // namespace kvartal::crds
