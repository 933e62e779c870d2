// TenantKVPolicy as a C++ value: exactly what crds/tenantkvpolicy.yaml allows.
// A plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crds/quantity.h"
#include "daemon/base/status.h"

namespace kvartal::crds {

class Findings;
struct YamlNode;

inline constexpr const char* kApiVersion = "kvartal.dev/v1alpha1";

struct Subject {
  std::string service_account_name;  // in Kubernetes
  std::optional<uint32_t> uid;       // file source only
  std::string socket;                // file source only
  friend bool operator==(const Subject&, const Subject&) = default;
};

// No claim on a tier: nothing may be held there. A guarantee without a limit: up to the tier's capacity.
struct TierClaim {
  std::optional<Quantity> guarantee;
  std::optional<Quantity> limit;
  friend bool operator==(const TierClaim&, const TierClaim&) = default;
};

struct PoolClaim {
  std::string pool_ref;
  TierClaim hbm;   // per GPU
  TierClaim dram;  // per node
  TierClaim nvme;  // per node
  friend bool operator==(const PoolClaim&, const PoolClaim&) = default;
};

struct TtlSpec {
  int64_t hbm_seconds = 30;
  int64_t dram_seconds = 600;
  int64_t nvme_seconds = 86400;
  bool demote_on_expiry = true;
  friend bool operator==(const TtlSpec&, const TtlSpec&) = default;
};

struct TenantPolicy {
  std::string name, ns;            // metadata
  std::string uid, namespace_uid;  // empty where a file gives none
  std::vector<Subject> subjects;
  std::string sla_tier = "Standard";  // Premium | Standard | Basic
  std::optional<int64_t> weight;      // default by tier 400/200/100
  std::vector<PoolClaim> pools;
  TtlSpec ttl;
  int64_t max_age_seconds = 0;
  std::optional<int64_t> max_entries;  // index entries
  std::string gpu_group, share_group;
  bool dedicated_mover = false;
  bool encrypt_nvme = false;
  struct Codec {
    std::vector<std::string> models;
    std::string dram = "None", nvme = "None";
    friend bool operator==(const Codec&, const Codec&) = default;
  };
  std::vector<Codec> codecs;
  int64_t sessions_max = 64;
  std::string source;  // "file:line" for errors that only the whole set can show
  friend bool operator==(const TenantPolicy&, const TenantPolicy&) = default;
};

// Reads one object whose kind is TenantKVPolicy. What is wrong goes to `findings`; the value is meaningless then.
TenantPolicy ReadTenantPolicy(const YamlNode& object, Findings* findings);

}  // namespace kvartal::crds
