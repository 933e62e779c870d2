// Any bytes as manifests and as the daemon's configuration: an answer, never a crash, and errors that say where.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "crds/manifest.h"
#include "daemon/base/check.h"
#include "daemon/config/node_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto manifests = kvartal::crds::ParseManifests(text, "m.yaml");
  KV_CHECK(manifests.ok() || manifests.status().message().substr(0, 7) == "m.yaml:");
  if (manifests.ok()) {
    for (const auto& policy : manifests->policies) KV_CHECK(!policy.name.empty() && !policy.ns.empty());
    for (const auto& pool : manifests->pools) KV_CHECK(!pool.name.empty());
  }
  const auto config = kvartal::config::ParseNodeConfig(text, "n.yaml", "/etc/kvartal");
  KV_CHECK(config.ok() || config.status().message().substr(0, 7) == "n.yaml:");
  if (config.ok()) KV_CHECK(config->run_dir[0] == '/' && config->dram_bytes > 0);
  return 0;
}
