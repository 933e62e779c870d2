// The immutable snapshot of what every tenant may do. Built whole from manifests, replaced whole, never edited.
// Immutable: any thread may read it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/base/status.h"
#include "daemon/block/tier_kind.h"

namespace kvartal::crds {
struct TenantPolicy;
struct NodePool;
}  // namespace kvartal::crds

namespace kvartal::policy {

inline constexpr uint64_t kNoLimit = UINT64_MAX;
inline constexpr uint32_t kSoftCapPercentDefault = 50;  // where no KVNodePool says otherwise

struct TierQuota {
  uint64_t guarantee_bytes = 0;
  uint64_t limit_bytes = 0;  // 0: this tenant may hold nothing here
};

enum class SlaTier : uint8_t { kBasic, kStandard, kPremium };
inline constexpr size_t kSlaTierCount = 3;
constexpr const char* SlaTierName(SlaTier sla) {
  constexpr const char* kNames[kSlaTierCount] = {"basic", "standard", "premium"};
  return kNames[static_cast<size_t>(sla)];
}
enum class OnExpiry : uint8_t { kDemote, kDelete };

struct TenantRules {
  std::string name;  // "<namespace>/<policy>", unique
  std::string uid;   // stable identity: namespace UID + policy UID, or the name where a file gives none; goes to disk
  SlaTier sla = SlaTier::kStandard;
  uint32_t weight = 200;
  std::array<TierQuota, kTierCount> quota;
  std::array<uint64_t, kTierCount> ttl_ms{};  // 0: never by idleness
  OnExpiry on_expiry = OnExpiry::kDemote;
  uint64_t max_age_ms = 0;  // 0: no limit
  uint64_t max_entries = kNoLimit;
  bool encrypt_nvme = false;  // no block of it is on NVMe in the clear
  uint32_t max_sessions = 64;
  std::vector<uint32_t> uids;                 // subjects of the uid attestor
  std::vector<std::string> sockets;           // subjects of the socket attestor
  std::vector<std::string> service_accounts;  // subjects of the k8s-token attestor: "<namespace>/<name>"

  TierQuota& tier(TierKind kind) { return quota[TierIndex(kind)]; }
  const TierQuota& tier(TierKind kind) const { return quota[TierIndex(kind)]; }
};

struct NodeCapacity {
  std::array<uint64_t, kTierCount> bytes{};  // crds::kUnknownCapacityBytes: of a node that nobody described
  bool encrypts_nvme = false;                // it is configured with keys for that
};

class PolicyTable {
 public:
  // Resolves percentages against `capacity` and checks what only the whole set can show: one owner a subject,
  // guarantees that fit. Each policy has at most one pool claim here. A tier it does not name has limit 0; a guarantee
  // without a limit has the capacity as its limit. `warnings` (may be null) collects what is legal but surely not
  // meant: a limit above the capacity (clipped), a limit smaller than a slot. Tenants are sorted by name.
  static absl::StatusOr<std::shared_ptr<const PolicyTable>> Build(const std::vector<crds::TenantPolicy>& policies,
                                                                  const NodeCapacity& capacity,
                                                                  std::vector<std::string>* warnings,
                                                                  uint32_t soft_cap_percent = kSoftCapPercentDefault);
  // A table made of ready rules, in their order, for tests and the simulator. KV_CHECKs that names and subjects are
  // unique.
  static std::shared_ptr<const PolicyTable> FromRules(std::vector<TenantRules> rules, const NodeCapacity& capacity,
                                                      uint32_t soft_cap_percent = kSoftCapPercentDefault);

  const std::vector<TenantRules>& tenants() const { return tenants_; }
  const NodeCapacity& capacity() const { return capacity_; }
  // Of a tier's capacity: what one tenant may hold there while another wants the space.
  uint32_t soft_cap_percent() const { return soft_cap_percent_; }
  // nullptr when nobody claims it.
  const TenantRules* FindByName(std::string_view name) const;
  const TenantRules* FindByUid(uint32_t uid) const;
  const TenantRules* FindBySocket(std::string_view socket) const;
  const TenantRules* FindByServiceAccount(std::string_view ns, std::string_view name) const;
  // Content hash, hex: equal content, equal version.
  const std::string& version() const { return version_; }

 private:
  PolicyTable() = default;
  std::vector<TenantRules> tenants_;
  NodeCapacity capacity_;
  uint32_t soft_cap_percent_ = kSoftCapPercentDefault;
  std::string version_;
  absl::flat_hash_map<std::string, size_t> by_name_;
  absl::flat_hash_map<uint32_t, size_t> by_uid_;
  absl::flat_hash_map<std::string, size_t> by_socket_;
  absl::flat_hash_map<std::string, size_t> by_service_account_;
};

}  // namespace kvartal::policy
