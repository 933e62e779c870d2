// Everything the exporter shows, as plain numbers: copied out on the engine loop, then never changed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/attach/attach_stats.h"
#include "daemon/block/tier_kind.h"
#include "daemon/engine/engine_stats.h"

namespace kvartal::telemetry {

struct NodeMetrics {
  engine::EngineStats engine;
  attach::AttachStats attach;
  std::array<bool, kTierCount> tier_configured{};
  std::array<bool, kTierCount> tier_healthy{};
  std::vector<tier::ConfiguredDisk> disks;  // of the NVMe tier; their number is bounded by kDisksMax
  uint64_t policy_age_ms = 0;
  std::optional<uint64_t> operator_away_ms;  // absent where policy comes from a folder
  uint64_t policy_reload_failures = 0;
  bool policy_refused = false;
  bool token_keys_refused = false;
  bool nvme_keys_refused = false;
  uint64_t audit_written = 0, audit_lost = 0;
  uint64_t uptime_ms = 0;
  uint64_t rss_bytes = 0;
  uint64_t bugs = 0;
  bool huge_pages = false;
  bool swappable = false;
  bool direct_io = false;
  bool io_uring = false;
  uint64_t io_overdue = 0;
  std::string version;
};

}  // namespace kvartal::telemetry
