// What the admin door asks of a node. process/ implements it over engine, attach and policy; tests fake it.
// Confined to the engine loop: every call is made there and every Done runs there.
// Invariant: a Done is run at most once; one that is dropped answers nobody (the caller's deadline does).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/status.h"
#include "daemon/block/tier_kind.h"
#include "daemon/engine/engine_stats.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::control {

// One connection of a pod.
struct SessionView {
  uint64_t id = 0;
  std::string tenant;
  std::string attestor;  // uid | socket
  uint32_t pid = 0;
  uint32_t uid = 0;
  std::string client;
  std::string group;  // hex, first bytes
  uint64_t age_ms = 0;
  uint32_t leases = 0, leased_blocks = 0, filling_blocks = 0;
};

// What is known of a tier beyond the engine's numbers.
struct TierView {
  bool configured = false;
  bool healthy = true;
  std::string note;  // what is degraded and what to do
};

struct NodeView {
  std::string version;
  uint64_t uptime_ms = 0;
  uint64_t rss_bytes = 0;
  uint64_t policy_age_ms = 0;
  std::string policy_error;  // why what is offered is refused
  std::string policy_note;   // what is wrong with the way to whoever offers
  uint64_t policy_reload_failures = 0;
  uint32_t policy_tenants = 0;
  engine::EngineStats engine;
  int64_t wall_ms = 0;
  std::shared_ptr<const policy::PolicyTable> policy;
  std::map<TenantId, std::string> tenant_names;  // of all that the engine knows
  std::set<std::string> removed_tenants;         // of those in `engine`: no longer in the policy
  int64_t removed_grace_ms = 0;                  // until what they still hold is erased
  std::array<TierView, kTierCount> tiers;
  std::vector<tier::ConfiguredDisk> disks;  // of the NVMe tier, as they are configured
  std::vector<SessionView> sessions;
  std::map<std::string, uint64_t> attach_denials;  // by reason
  uint64_t reclaims = 0;
  std::vector<uint32_t> recent_reclaim_us;
  bool huge_pages = false;
  bool direct_io = false;
  std::string io_engine;        // io_uring | threads; "" without an NVMe tier
  uint32_t nvme_key_id = 0;     // that blocks are encrypted under now; 0: none
  uint32_t nvme_keys = 0;       // to decrypt by
  std::string nvme_keys_error;  // why their file is not what is used
  std::string attach_socket;
  std::string metrics_address;
  std::string metrics_error;
  std::string audit_log;
  uint64_t audit_lost = 0;
};

struct PolicyReload {
  std::string version;
  std::vector<std::string> warnings;
};

class AdminBackend {
 public:
  template <typename T>
  using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;
  virtual ~AdminBackend() = default;

  virtual NodeView View() = 0;
  // Ends the tenant's sessions; bytes deleted. NotFound names the tenants there are; Internal: not all is gone.
  virtual void Drop(const std::string& tenant, Done<uint64_t> done) = 0;
  virtual void Drain(Done<bool> done) = 0;
  // Not OK: the policy in force stays.
  virtual void ReloadPolicy(Done<PolicyReload> done) = 0;
  // Index entries checked; Internal when a sum differs.
  virtual void CheckInvariants(Done<uint64_t> done) = 0;
};

}  // namespace kvartal::control
