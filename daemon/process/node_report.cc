#include "daemon/process/node_report.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/check.h"
#include "daemon/base/units.h"

namespace kvartal::process {
namespace {

uint64_t UptimeMs(const NodeParts& parts) {
  return static_cast<uint64_t>((parts.clock->MonotonicNs() - parts.started_ns) / kNsPerMs);
}

// It comes back by itself when the errors stop, or the transfers end.
std::string UnhealthyNote(const tier::DiskStats& disk) {
  const bool offline = disk.state == tier::DeviceState::kOffline;
  return absl::StrCat("the device is ", tier::DeviceStateName(disk.state), " (", disk.counters.read_errors,
                      " read errors, ", disk.counters.write_errors, " write errors, ", disk.counters.quarantined_slots,
                      " places kept out of use): ",
                      offline ? "it hangs or failed again and again, what it holds is a miss for now"
                              : "it takes no new blocks, reads go on",
                      "; it is tried again when that stops -> look at the log and at the disk");
}

std::string NoteOf(const NvmeStackDisk& disk, const tier::DiskStats& stats) {
  if (stats.state != tier::DeviceState::kHealthy) return UnhealthyNote(stats);
  if (!disk.file->direct_io()) {
    return "the file system takes no O_DIRECT: the page cache holds every block a second time -> put the file on ext4, "
           "xfs or a raw device";
  }
  if (stats.counters.quarantined_slots == 0) return disk.engine_note;
  return absl::StrCat(stats.counters.quarantined_slots,
                      " places of the device failed and are kept out of use -> look at the disk (smartctl)");
}

std::vector<tier::ConfiguredDisk> DisksOf(const NvmeStack& nvme, const engine::EngineStats& stats) {
  std::vector<tier::ConfiguredDisk> disks;
  size_t next = 0;  // of those that are there
  for (const NvmeStackDisk& disk : nvme.disks) {
    tier::ConfiguredDisk& out = disks.emplace_back();
    out.path = disk.path;
    out.present = disk.file != nullptr;
    out.note = disk.note;
    if (!out.present) continue;
    KV_CHECK(next < stats.nvme_disks.size());
    out.stats = stats.nvme_disks[next++];
    out.io_engine = device::IoEngineName(disk.engine);
    out.note = NoteOf(disk, out.stats);
  }
  return disks;
}

// That of one disk is the tier's own. Of several each says which it is of, unless it is of all of them.
std::string NoteOf(const std::vector<tier::ConfiguredDisk>& disks) {
  const bool same = std::all_of(disks.begin(), disks.end(),
                                [&](const tier::ConfiguredDisk& disk) { return disk.note == disks.front().note; });
  if (same) return disks.empty() ? "" : disks.front().note;
  std::vector<std::string> notes;
  for (const tier::ConfiguredDisk& disk : disks) {
    if (!disk.note.empty()) notes.push_back(absl::StrCat(disk.path, ": ", disk.note));
  }
  return absl::StrJoin(notes, "; ");
}

std::string NoteOfBudget(const engine::EngineStats& stats) {
  std::string written;
  switch (stats.write_budget_asks) {
    case policy::WriteWorth::kAny:
      return "";
    case policy::WriteWorth::kLikely:
      written =
          "is half used up: only blocks whose like is often used again, that were used again or whose "
          "conversation goes on, are written";
      break;
    case policy::WriteWorth::kProven:
      written = "is nearly used up: only blocks that were used again, or whose conversation goes on, are written";
      break;
  }
  return absl::StrCat("its write budget of ", stats.write_budget_bytes_per_second, " bytes a second ", written,
                      " -> raise nvme.writesPerDayPercent if the disk may wear faster");
}

std::array<control::TierView, kTierCount> TiersOf(const NodeParts& parts, const engine::EngineStats& stats,
                                                  const std::vector<tier::ConfiguredDisk>& disks) {
  std::array<control::TierView, kTierCount> tiers;
  control::TierView& dram = tiers[TierIndex(TierKind::kDram)];
  dram.configured = parts.config->dram_bytes > 0;
  if (parts.memory->Swappable()) {
    dram.note =
        "blocks may be written to swap -> raise the limit on locked memory (LimitMEMLOCK=infinity) and restart, or "
        "swapoff -a";
  } else if (!parts.memory->HugePages()) {
    dram.note =
        "no huge pages for shared memory, populating costs about ten times more -> as root, "
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  }
  control::TierView& nvme = tiers[TierIndex(TierKind::kNvme)];
  nvme.configured = !parts.config->nvme.empty();
  nvme.healthy = nvme.configured && stats.nvme_present && stats.nvme_state == tier::DeviceState::kHealthy;
  nvme.note = NoteOf(disks);
  if (nvme.note.empty()) nvme.note = NoteOfBudget(stats);
  return tiers;
}

// A tenant that is gone from the policy is shown while it still holds bytes.
engine::EngineStats ShownStats(engine::EngineStats stats) {
  const auto is_history = [](const engine::TenantStats& tenant) {
    return tenant.removed && std::all_of(tenant.tiers.begin(), tenant.tiers.end(),
                                         [](const engine::TenantTierStats& tier) { return tier.charged_bytes == 0; });
  };
  stats.tenants.erase(std::remove_if(stats.tenants.begin(), stats.tenants.end(), is_history), stats.tenants.end());
  return stats;
}

}  // namespace

uint64_t OwnResidentBytes() {
  std::ifstream status("/proc/self/status");
  uint64_t total_kib = 0, kib = 0;
  for (std::string word; status >> word;) {
    if ((word == "RssAnon:" || word == "RssFile:") && status >> kib) total_kib += kib;
  }
  return total_kib * kKiB;
}

control::NodeView ViewOf(const NodeParts& parts) {
  control::NodeView view;
  view.version = KVARTAL_VERSION;
  view.uptime_ms = UptimeMs(parts);
  view.rss_bytes = OwnResidentBytes();
  view.policy_age_ms = parts.policy->age_ms();
  view.policy_error = parts.policy->last_error();
  view.policy_note = parts.policy->feed_note();
  view.policy_tenants = static_cast<uint32_t>(parts.policy->table()->tenants().size());
  view.policy_reload_failures = parts.policy->reload_failures();
  view.wall_ms = parts.clock->WallMs();
  view.policy = parts.policy->table();
  engine::EngineStats stats = parts.engine->stats();
  for (const engine::TenantStats& tenant : stats.tenants) view.tenant_names[tenant.id] = tenant.name;
  view.engine = ShownStats(std::move(stats));
  for (const engine::TenantStats& tenant : view.engine.tenants) {
    if (tenant.removed) view.removed_tenants.insert(tenant.name);
  }
  view.removed_grace_ms = parts.config->removed_grace_ms;
  view.disks = DisksOf(*parts.nvme, view.engine);
  view.tiers = TiersOf(parts, view.engine, view.disks);
  attach::AttachStats attach = parts.attach->stats();
  for (attach::SessionInfo& session : attach.session_list) {
    control::SessionView& out = view.sessions.emplace_back();
    out.id = session.id;
    out.tenant = std::move(session.tenant);
    out.attestor = std::move(session.attestor);
    out.pid = session.pid;
    out.uid = session.uid;
    out.client = std::move(session.client);
    out.group = std::move(session.group);
    out.age_ms = session.age_ms;
    out.leases = session.leases;
    out.leased_blocks = session.leased_blocks;
    out.filling_blocks = session.filling_blocks;
  }
  for (size_t i = 1; i < attach::kDenialReasonCount; ++i) {
    if (attach.denials[i] == 0) continue;
    view.attach_denials[attach::DenialReasonName(static_cast<attach::DenialReason>(i))] = attach.denials[i];
  }
  view.reclaims = attach.reclaims;
  view.recent_reclaim_us = std::move(attach.recent_reclaim_us);
  view.huge_pages = parts.memory->HugePages();
  view.direct_io = parts.nvme->direct_io();
  if (parts.nvme->tier != nullptr) view.io_engine = device::IoEngineName(parts.nvme->engine());
  if (parts.nvme_keys != nullptr) {
    view.nvme_key_id = parts.nvme_keys->ring()->keys()->newest();
    view.nvme_keys = static_cast<uint32_t>(parts.nvme_keys->ring()->keys()->size());
    view.nvme_keys_error = parts.nvme_keys->last_error();
  }
  view.attach_socket = parts.config->attach_socket;
  view.metrics_address = parts.metrics_address;
  view.metrics_error = parts.metrics_error;
  view.audit_log = parts.config->audit_log;
  view.audit_lost = parts.audit->lost();
  return view;
}

std::vector<control::TenantUse> UseOf(const engine::CacheEngine& engine) {
  std::vector<control::TenantUse> use;
  for (const engine::TenantStats& tenant : engine.stats().tenants) {
    if (tenant.removed) continue;
    control::TenantUse& one = use.emplace_back();
    one.tenant = tenant.name;
    for (size_t i = 0; i < kTierCount; ++i) {
      one.bytes[i] = tenant.tiers[i].charged_bytes;
      one.above_limit |= tenant.tiers[i].charged_bytes > tenant.tiers[i].limit_bytes;
    }
  }
  return use;
}

std::string UnderWayOf(const NodeParts& parts) {
  const engine::EngineStats stats = parts.engine->stats();
  std::vector<std::string> what;
  const auto note = [&](uint64_t count, const std::string& of) {
    if (count > 0) what.push_back(absl::StrCat(count, " ", of));
  };
  note(stats.waiting_requests, "stores and loads that wait for room");
  note(stats.loads_under_way, "loads");
  note(stats.writes_under_way, "writes to NVMe");
  note(std::accumulate(stats.reclaiming_bytes.begin(), stats.reclaiming_bytes.end(), uint64_t{0}),
       "bytes of memory on their way back");
  note(parts.audit->pending(), "events for the audit log");
  const bool reading = parts.policy->reading() || (parts.token_keys != nullptr && parts.token_keys->reading()) ||
                       (parts.nvme_keys != nullptr && parts.nvme_keys->reading());
  if (reading) what.emplace_back("a reading of the policy or of keys");
  if (what.empty()) return "";
  for (const NvmeStackDisk& disk : parts.nvme->disks) {
    if (disk.file != nullptr) note(disk.file->Overdue(), absl::StrCat("late transfers of the disk ", disk.path));
  }
  return absl::StrJoin(what, ", ");
}

telemetry::NodeMetrics MetricsOf(const NodeParts& parts) {
  telemetry::NodeMetrics metrics;
  metrics.engine = ShownStats(parts.engine->stats());
  metrics.attach = parts.attach->stats();
  metrics.disks = DisksOf(*parts.nvme, metrics.engine);
  const std::array<control::TierView, kTierCount> tiers = TiersOf(parts, metrics.engine, metrics.disks);
  for (size_t i = 0; i < kTierCount; ++i) {
    metrics.tier_configured[i] = tiers[i].configured;
    metrics.tier_healthy[i] = tiers[i].healthy;
  }
  metrics.policy_age_ms = parts.policy->age_ms();
  metrics.operator_away_ms = parts.policy->away_ms();
  metrics.policy_reload_failures = parts.policy->reload_failures();
  metrics.policy_refused = !parts.policy->last_error().empty();
  metrics.token_keys_refused =
      parts.operator_keys_refused || (parts.token_keys != nullptr && !parts.token_keys->last_error().empty());
  metrics.nvme_keys_refused = parts.nvme_keys != nullptr && !parts.nvme_keys->last_error().empty();
  metrics.audit_written = parts.audit->written();
  metrics.audit_lost = parts.audit->lost();
  metrics.uptime_ms = UptimeMs(parts);
  metrics.rss_bytes = OwnResidentBytes();
  metrics.bugs = BugCount();
  metrics.huge_pages = parts.memory->HugePages();
  metrics.swappable = parts.memory->Swappable();
  metrics.direct_io = parts.nvme->direct_io();
  metrics.io_uring = parts.nvme->tier != nullptr && parts.nvme->engine() == device::IoEngine::kUring;
  for (const tier::ConfiguredDisk& disk : metrics.disks) metrics.io_overdue += disk.stats.overdue_transfers;
  metrics.version = KVARTAL_VERSION;
  return metrics;
}

}  // namespace kvartal::process
