// The configuration and manifests of a benchmark's daemon, as values and as text. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/limits.h"

namespace kvartal::bench {

struct TenantSetup {
  std::string name = "bench";
  std::optional<uint32_t> uid;          // a subject of the uid attestor
  std::string door;                     // or a door of its own: the socket attestor
  uint64_t dram_limit_bytes = 0;        // 0: the whole tier
  uint64_t nvme_limit_bytes = 0;        // 0: the whole tier
  std::optional<uint64_t> entries_max;  // index entries
  std::string sla_tier = "Standard";    // Premium | Standard | Basic
};

struct DaemonSetup {
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;  // 0: no NVMe tier
  int nvme_threads = 8;
  std::string nvme_io = "auto";
  bool encrypted = false;  // blocks of all tenants on NVMe, under the key of KeyText
  std::string eviction = "lru";
  uint32_t lease_ms = kLeaseMsDefault;
  std::vector<TenantSetup> tenants;
  std::string manifests;  // the policies word for word, instead of what `tenants` says
};

// The YAML that kvartald reads; everything lies in `folder`.
std::string ConfigurationText(const DaemonSetup& setup, const std::string& folder);
// Of `encrypted`: a key that protects nothing.
std::string KeyText();
// One YAML stream of TenantKVPolicy manifests.
std::string ManifestText(const DaemonSetup& setup);

}  // namespace kvartal::bench
