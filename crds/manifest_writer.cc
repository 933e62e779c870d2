#include "crds/manifest_writer.h"

#include <tuple>

#include "nlohmann/json.hpp"

namespace kvartal::crds {
namespace {

using nlohmann::json;  // its objects keep their keys sorted

json ValueOf(const Quantity& size) {
  return size.is_percent ? json(std::to_string(size.percent) + "%") : json(size.bytes);
}

// Nothing where nothing is claimed: an empty claim is no claim.
void PutClaim(json* tiers, const char* tier, const TierClaim& claim) {
  if (claim.guarantee) (*tiers)[tier]["guarantee"] = ValueOf(*claim.guarantee);
  if (claim.limit) (*tiers)[tier]["limit"] = ValueOf(*claim.limit);
}

json ValueOf(const PoolClaim& claim) {
  json value = {{"poolRef", claim.pool_ref}}, per_gpu = json::object(), per_node = json::object();
  PutClaim(&per_gpu, "hbm", claim.hbm);
  PutClaim(&per_node, "dram", claim.dram);
  PutClaim(&per_node, "nvme", claim.nvme);
  if (!per_gpu.empty()) value["perGpu"] = per_gpu;
  if (!per_node.empty()) value["perNode"] = per_node;
  return value;
}

json ValueOf(const Subject& subject) {
  if (subject.uid) return {{"uid", *subject.uid}};
  if (!subject.socket.empty()) return {{"socket", subject.socket}};
  return {{"serviceAccountName", subject.service_account_name}};
}

json SpecOf(const TenantPolicy& policy) {
  json spec = {{"subjects", json::array()},
               {"slaTier", policy.sla_tier},
               {"pools", json::array()},
               {"ttl",
                {{"hbmSeconds", policy.ttl.hbm_seconds},
                 {"dramSeconds", policy.ttl.dram_seconds},
                 {"nvmeSeconds", policy.ttl.nvme_seconds},
                 {"onExpiry", policy.ttl.demote_on_expiry ? "Demote" : "Delete"}}},
               {"retention", {{"maxAgeSeconds", policy.max_age_seconds}}},
               {"isolation", {{"dedicatedMover", policy.dedicated_mover}}},
               {"encryption", {{"nvme", policy.encrypt_nvme ? "Required" : "None"}}},
               {"sessions", {{"max", policy.sessions_max}}}};
  if (policy.weight) spec["weight"] = *policy.weight;
  if (policy.max_entries) spec["index"]["maxEntries"] = *policy.max_entries;
  if (!policy.gpu_group.empty()) spec["isolation"]["gpuGroup"] = policy.gpu_group;
  if (!policy.share_group.empty()) spec["isolation"]["shareGroup"] = policy.share_group;
  for (const Subject& subject : policy.subjects) spec["subjects"].push_back(ValueOf(subject));
  for (const PoolClaim& claim : policy.pools) spec["pools"].push_back(ValueOf(claim));
  for (const TenantPolicy::Codec& codec : policy.codecs)
    spec["codecs"].push_back({{"models", codec.models}, {"dram", codec.dram}, {"nvme", codec.nvme}});
  return spec;
}

}  // namespace

std::string WriteTenantPolicySpec(const TenantPolicy& policy) { return SpecOf(policy).dump(); }

std::string WriteTenantPolicy(const TenantPolicy& policy) {
  json object = {{"apiVersion", kApiVersion},
                 {"kind", "TenantKVPolicy"},
                 {"metadata", {{"name", policy.name}, {"namespace", policy.ns}}},
                 {"spec", SpecOf(policy)}};
  if (!policy.uid.empty()) object["metadata"]["uid"] = policy.uid;
  return object.dump();
}

std::string WriteNodeOfPool(const NodePool& pool) {
  json capacity = json::object();
  for (const auto& [tier, stated, size] :
       {std::tuple("hbmPerGpu", pool.has_hbm, pool.hbm_per_gpu), std::tuple("dram", pool.has_dram, pool.dram),
        std::tuple("nvme", pool.has_nvme, pool.nvme)}) {
    if (stated) capacity[tier] = size.bytes;
  }
  return json{{"apiVersion", kApiVersion},
              {"kind", "KVNodePool"},
              {"metadata", {{"name", pool.name}}},
              {"spec", {{"capacity", capacity}, {"softCapPercent", pool.soft_cap_percent}}}}
      .dump();
}

}  // namespace kvartal::crds
