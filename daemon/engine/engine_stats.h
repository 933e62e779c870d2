// Plain numbers of the engine, copied out for metrics and `kvartalctl`. No behaviour, no dependencies on the engine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/base/latency_histogram.h"
#include "daemon/block/tier_kind.h"
#include "daemon/policy/drop_reason.h"
#include "daemon/policy/policy_table.h"
#include "daemon/policy/refusal.h"
#include "daemon/policy/write_worth.h"
#include "daemon/tier/device_state.h"
#include "daemon/tier/disk_stats.h"

namespace kvartal::engine {

struct TenantTierStats {
  uint64_t charged_bytes = 0, limit_bytes = 0, guarantee_bytes = 0, granted_empty_bytes = 0, peak_bytes = 0;
  uint64_t overshoot_bytes = 0;         // the most a charge ever took it above its limit: 0, or there is a bug
  uint64_t taken_within_guarantee = 0;  // copies that others took while it held no more than that: 0, or a bug
  uint64_t blocks = 0;
  uint64_t fair_share_bytes = 0, demand_bytes = 0;  // what the rules would give it now, and what it could use
  uint64_t tokens_served = 0;                       // of prompts found, by the tier they were found in
  double byte_seconds = 0;                          // charged bytes over time, tick by tick
  std::array<policy::Tally, policy::kDropReasonCount> drops{};
  std::array<policy::Tally, policy::kRefusalCount> refusals{};

  uint64_t evictions() const { return CountOf(policy::IsEviction); }  // copies dropped for space
  uint64_t expirations() const { return CountOf(policy::IsExpiry); }  // copies dropped by TTL or maxAge
  policy::Tally& drop(policy::DropReason reason) & { return drops[static_cast<size_t>(reason)]; }
  policy::Tally drop(policy::DropReason reason) const& { return drops[static_cast<size_t>(reason)]; }
  policy::Tally& refusal(policy::Refusal reason) { return refusals[static_cast<size_t>(reason)]; }
  const policy::Tally& refusal(policy::Refusal reason) const { return refusals[static_cast<size_t>(reason)]; }

 private:
  uint64_t CountOf(bool (*belongs)(policy::DropReason)) const {
    uint64_t count = 0;
    for (size_t i = 0; i < drops.size(); ++i) count += belongs(static_cast<policy::DropReason>(i)) ? drops[i].count : 0;
    return count;
  }
};

struct TenantStats {
  TenantId id;  // given again to another tenant when this one is gone
  std::string name;
  bool removed = false;  // no policy names it
  bool encrypts_nvme = false;
  std::array<TenantTierStats, kTierCount> tiers;
  uint64_t entries = 0;
  uint64_t lookups = 0;
  uint64_t blocks_asked = 0, blocks_hit = 0;  // over whole requests; hits are the longest resident prefix
  uint64_t tokens_asked = 0, tokens_hit = 0;
  uint64_t blocks_stored = 0, blocks_aborted = 0;
  uint64_t blocks_loaded = 0;                            // promoted from NVMe
  uint64_t stored_bytes = 0;                             // committed
  uint64_t nvme_read_bytes = 0, nvme_written_bytes = 0;  // of its blocks, headers not counted
  uint64_t load_failures = 0;
  uint64_t demotions = 0;       // copies written to NVMe because DRAM wanted the space
  uint64_t write_throughs = 0;  // copies written to NVMe at commit
  uint64_t durable_blocks = 0;
  uint64_t pinned_blocks = 0, pinned_bytes = 0;
  uint64_t kept_bytes = 0;        // of blocks read in place, or pinned in DRAM: each once
  uint64_t leased_bytes = 0;      // of blocks read in place
  uint64_t reclaiming_bytes = 0;  // memory it gave back, until the system has it
};

// From their arrival at the engine to their answers.
struct RequestLatency {
  LatencyHistogram load;
  LatencyHistogram reserve;  // what a store waits for: memory, or a write that makes room
};

struct EngineStats {
  std::vector<TenantStats> tenants;
  std::array<uint64_t, kTierCount> capacity_bytes{};
  std::array<uint64_t, kTierCount> charged_bytes{};
  std::array<uint64_t, kTierCount> reclaiming_bytes{};
  uint64_t entries = 0;
  uint64_t index_bytes = 0;
  uint64_t timers = 0, timer_bytes = 0;
  uint64_t leased_blocks = 0;
  uint64_t waiting_requests = 0;
  uint64_t loads_under_way = 0;
  uint64_t writes_under_way = 0;
  uint64_t stray_bytes_punched = 0;
  uint64_t charges = 0;  // granted, all tenants and tiers
  // Of Reserves with a refused block: what deciding took, and from their arrival at the engine to the answer, which may
  // have to wait for memory or for a write.
  LatencyHistogram refusals_decided, refusals_answered;
  std::array<RequestLatency, policy::kSlaTierCount> latency;  // by the SLA tier of the tenant
  std::string policy_version;
  bool nvme_present = false;
  tier::DeviceState nvme_state = tier::DeviceState::kOffline;
  uint64_t nvme_quarantined_slots = 0;
  std::vector<tier::DiskStats> nvme_disks;
  // Somebody waits for its guarantee: nobody leases more than its own.
  std::array<bool, kTierCount> guarantee_waits{};
  bool recovering = false;
  bool draining = false;
  uint64_t nvme_written_bytes = 0;                                           // blocks with their headers
  uint64_t write_budget_bytes_per_second = 0, write_budget_saved_bytes = 0;  // 0: no budget
  policy::WriteWorth write_budget_asks = policy::WriteWorth::kAny;           // of a block that is to be written
  uint64_t nvme_read_errors = 0, nvme_write_errors = 0, nvme_mismatches = 0;
};

}  // namespace kvartal::engine
