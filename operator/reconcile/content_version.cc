#include "operator/reconcile/content_version.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace kvartal::reconcile {
namespace {

using nlohmann::json;  // its objects keep their keys sorted

json TextOf(const std::optional<crds::Quantity>& size) {
  if (!size) return nullptr;
  return size->is_percent ? json(std::to_string(size->percent) + "%") : json(size->bytes);
}

json TextOf(const crds::TierClaim& claim) {
  return {{"guarantee", TextOf(claim.guarantee)}, {"limit", TextOf(claim.limit)}};
}

json TextOf(const crds::Subject& subject) {
  return {{"serviceAccountName", subject.service_account_name},
          {"uid", subject.uid ? json(*subject.uid) : json(nullptr)},
          {"socket", subject.socket}};
}

// Everything a daemon may act on; not where it was read.
json ValueOf(const crds::TenantPolicy& policy) {
  json value = {{"name", policy.name},
                {"namespace", policy.ns},
                {"uid", policy.uid},
                {"namespaceUid", policy.namespace_uid},
                {"slaTier", policy.sla_tier},
                {"weight", policy.weight ? json(*policy.weight) : json(nullptr)},
                {"hbmSeconds", policy.ttl.hbm_seconds},
                {"dramSeconds", policy.ttl.dram_seconds},
                {"nvmeSeconds", policy.ttl.nvme_seconds},
                {"demoteOnExpiry", policy.ttl.demote_on_expiry},
                {"maxAgeSeconds", policy.max_age_seconds},
                {"maxEntries", policy.max_entries ? json(*policy.max_entries) : json(nullptr)},
                {"gpuGroup", policy.gpu_group},
                {"shareGroup", policy.share_group},
                {"dedicatedMover", policy.dedicated_mover},
                {"encryptNvme", policy.encrypt_nvme},
                {"sessionsMax", policy.sessions_max},
                {"subjects", json::array()},
                {"pools", json::array()},
                {"codecs", json::array()}};
  for (const crds::Subject& subject : policy.subjects) value["subjects"].push_back(TextOf(subject));
  for (const crds::PoolClaim& claim : policy.pools) {
    value["pools"].push_back({{"poolRef", claim.pool_ref},
                              {"hbm", TextOf(claim.hbm)},
                              {"dram", TextOf(claim.dram)},
                              {"nvme", TextOf(claim.nvme)}});
  }
  for (const crds::TenantPolicy::Codec& codec : policy.codecs)
    value["codecs"].push_back({{"models", codec.models}, {"dram", codec.dram}, {"nvme", codec.nvme}});
  return value;
}

}  // namespace

std::string VersionOf(const crds::NodePool& pool, const std::vector<crds::TenantPolicy>& tenants) {
  json all = {{"pool", pool.name}, {"softCapPercent", pool.soft_cap_percent}, {"tenants", json::array()}};
  for (const auto& [key, stated, size] :
       {std::tuple("hbm", pool.has_hbm, pool.hbm_per_gpu), std::tuple("dram", pool.has_dram, pool.dram),
        std::tuple("nvme", pool.has_nvme, pool.nvme)})
    all[key] = stated ? json(size.bytes) : json(nullptr);
  for (const crds::TenantPolicy& tenant : tenants) all["tenants"].push_back(ValueOf(tenant));
  const std::string text = all.dump();
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace kvartal::reconcile
