#include "crds/tenant_policy.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "crds/field_reader.h"
#include "crds/object_meta.h"
#include "daemon/base/limits.h"

namespace kvartal::crds {
namespace {

constexpr std::array<std::string_view, 3> kSlaTiers = {"Premium", "Standard", "Basic"};
constexpr std::array<std::string_view, 2> kOnExpiry = {"Demote", "Delete"};
constexpr std::array<std::string_view, 2> kEncryption = {"None", "Required"};
constexpr std::array<std::string_view, 3> kCodecNames = {"None", "FP8E4M3", "FP8E5M2"};

void ReadSubject(FieldReader& subject, TenantPolicy* policy) {
  Subject read;
  read.service_account_name = subject.Text("serviceAccountName", kDnsSubdomain).value_or("");
  if (const auto uid = subject.Integer("uid", 0, int64_t{UINT32_MAX} - 1)) read.uid = static_cast<uint32_t>(*uid);
  read.socket = subject.Text("socket", kDnsLabel).value_or("");
  const int given = subject.Has("serviceAccountName") + subject.Has("uid") + subject.Has("socket");
  if (given != 1) {
    subject.findings()->Add(subject.position(), subject.path(),
                            "must have exactly one of serviceAccountName, uid, socket; make it one subject each");
  }
  policy->subjects.push_back(std::move(read));
}

void ReadTierClaim(FieldReader& tiers, const char* tier, TierClaim* claim) {
  tiers.Object(tier, [&](FieldReader& reader) {
    claim->guarantee = reader.Size("guarantee", Percent::kAllowed);
    claim->limit = reader.Size("limit", Percent::kAllowed);
    if (!reader.Has("guarantee") && !reader.Has("limit")) {
      reader.findings()->Add(reader.position(), reader.path(), "must have guarantee, limit or both; or remove the key");
    }
    if (!claim->guarantee || !claim->limit || claim->guarantee->is_percent != claim->limit->is_percent) return;
    const bool above = claim->guarantee->is_percent ? claim->guarantee->percent > claim->limit->percent
                                                    : claim->guarantee->bytes > claim->limit->bytes;
    if (above) reader.Fail("guarantee", "is above limit; a guarantee must be at most the limit");
  });
}

void ReadPoolClaim(FieldReader& pool, TenantPolicy* policy) {
  PoolClaim claim;
  pool.Require("poolRef", "the name of a KVNodePool");
  claim.pool_ref = pool.Text("poolRef", kDnsLabel).value_or("");
  for (const PoolClaim& other : policy->pools) {
    if (!claim.pool_ref.empty() && other.pool_ref == claim.pool_ref) {
      pool.Fail("poolRef", absl::StrCat("pool '", claim.pool_ref, "' is claimed twice; merge the two claims"));
    }
  }
  pool.Object("perGpu", [&](FieldReader& tiers) { ReadTierClaim(tiers, "hbm", &claim.hbm); });
  pool.Object("perNode", [&](FieldReader& tiers) {
    ReadTierClaim(tiers, "dram", &claim.dram);
    ReadTierClaim(tiers, "nvme", &claim.nvme);
  });
  if (policy->sla_tier == "Basic" && claim.hbm.guarantee) {
    pool.Fail("perGpu",
              "slaTier Basic may not have an hbm guarantee; remove hbm.guarantee or choose Standard or Premium");
  }
  policy->pools.push_back(std::move(claim));
}

void ReadTtl(FieldReader& ttl, TtlSpec* spec) {
  spec->hbm_seconds = ttl.Integer("hbmSeconds", 0, kSecondsMax).value_or(spec->hbm_seconds);
  spec->dram_seconds = ttl.Integer("dramSeconds", 0, kSecondsMax).value_or(spec->dram_seconds);
  spec->nvme_seconds = ttl.Integer("nvmeSeconds", 0, kSecondsMax).value_or(spec->nvme_seconds);
  if (const auto on_expiry = ttl.OneOf("onExpiry", kOnExpiry)) spec->demote_on_expiry = *on_expiry == "Demote";
}

void ReadCodec(FieldReader& reader, TenantPolicy* policy) {
  TenantPolicy::Codec codec;
  reader.Require("models", "names of models, or \"*\"");
  codec.models = reader.Texts("models", kCodecModelsMax, kShortText);
  codec.dram = reader.OneOf("dram", kCodecNames).value_or(codec.dram);
  codec.nvme = reader.OneOf("nvme", kCodecNames).value_or(codec.nvme);
  policy->codecs.push_back(std::move(codec));
}

void ReadSpec(FieldReader& spec, TenantPolicy* policy) {
  spec.Objects("subjects", kSubjectsMax, [&](FieldReader& subject) { ReadSubject(subject, policy); });
  policy->sla_tier = spec.OneOf("slaTier", kSlaTiers).value_or(policy->sla_tier);
  policy->weight = spec.Integer("weight", 1, kWeightMax);
  spec.Objects("pools", kPoolClaimsMax, [&](FieldReader& pool) { ReadPoolClaim(pool, policy); });
  spec.Object("ttl", [&](FieldReader& ttl) { ReadTtl(ttl, &policy->ttl); });
  spec.Object("retention", [&](FieldReader& retention) {
    policy->max_age_seconds = retention.Integer("maxAgeSeconds", 0, kSecondsMax).value_or(policy->max_age_seconds);
  });
  spec.Object("index", [&](FieldReader& index) { policy->max_entries = index.Integer("maxEntries", 0, kEntriesMax); });
  spec.Object("isolation", [&](FieldReader& isolation) {
    policy->gpu_group = isolation.Text("gpuGroup", kDnsLabelOrEmpty).value_or("");
    policy->dedicated_mover = isolation.Bool("dedicatedMover").value_or(policy->dedicated_mover);
    policy->share_group = isolation.Text("shareGroup", kDnsLabelOrEmpty).value_or("");
  });
  spec.Object("encryption", [&](FieldReader& encryption) {
    policy->encrypt_nvme = encryption.OneOf("nvme", kEncryption).value_or("None") == "Required";
  });
  spec.Objects("codecs", kCodecsMax, [&](FieldReader& codec) { ReadCodec(codec, policy); });
  spec.Object("sessions", [&](FieldReader& sessions) {
    policy->sessions_max = sessions.Integer("max", 1, kSessionsMax).value_or(policy->sessions_max);
  });
}

}  // namespace

TenantPolicy ReadTenantPolicy(const YamlNode& object, Findings* findings) {
  TenantPolicy policy;
  policy.source = findings->PlaceOf(object.position);
  FieldReader reader(object, "", findings);
  const ObjectMeta meta = ReadObjectMeta(reader, Scope::kNamespaced);
  policy.name = meta.name;
  policy.ns = meta.ns;
  policy.uid = meta.uid;
  reader.Require("spec");
  reader.Object("spec", [&](FieldReader& spec) { ReadSpec(spec, &policy); });
  return policy;
}

}  // namespace kvartal::crds
