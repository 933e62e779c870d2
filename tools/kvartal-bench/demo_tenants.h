// Who takes part in the demo: the policies of crds/examples/demo, read as the daemon reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/status.h"
#include "tools/kvartal-bench/trace.h"

namespace kvartal::bench {

struct DemoTenant {
  std::string name;  // <namespace>/<policy>
  std::optional<uint32_t> uid;
  std::string door;
  uint64_t dram_limit = 0;
  uint32_t share_from = 0, share_to = 0;  // of kDemoShares
};

struct DemoCast {
  std::vector<DemoTenant> tenants;
  std::string manifests;  // the text of all files
};
// Every *.yaml of `folder`; the tenant with the most memory first.
absl::StatusOr<DemoCast> ReadCast(const std::string& folder);

// What a cache without limits would find.
struct IdealHits {
  uint64_t requests = 0;
  uint64_t tokens_asked = 0, tokens_hit = 0;
};
IdealHits IdealOf(const Trace& trace, const DemoTenant& tenant);

}  // namespace kvartal::bench
