#include "tools/kvartal-bench/demo_tenants.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "crds/manifest.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/demo_client.h"

namespace kvartal::bench {
namespace {

constexpr size_t kTenants = 3;
constexpr uint64_t kDramForOrder = 1 * kGiB;
constexpr std::array<uint32_t, kTenants + 1> kShareBounds = {0, 5, 8,
                                                             kDemoShares};  // 50, 30, 20 %: most to the largest

}  // namespace

absl::StatusOr<DemoCast> ReadCast(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  if (error) return absl::NotFoundError(absl::StrCat(folder, ": ", error.message()));
  std::sort(files.begin(), files.end());
  DemoCast cast;
  for (const std::filesystem::path& file : files) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    KV_ASSIGN_OR_RETURN(const crds::Manifests manifests, crds::ParseManifests(text.str(), file.string()));
    for (const crds::TenantPolicy& policy : manifests.policies) {
      DemoTenant tenant;
      tenant.name = absl::StrCat(policy.ns, "/", policy.name);
      for (const crds::Subject& subject : policy.subjects) {
        if (subject.uid) tenant.uid = subject.uid;
        if (!subject.socket.empty()) tenant.door = subject.socket;
      }
      for (const crds::PoolClaim& claim : policy.pools) {
        // Percentages of one pool: their order is that of the bytes.
        if (claim.dram.limit) tenant.dram_limit += claim.dram.limit->Resolve(kDramForOrder);
      }
      cast.tenants.push_back(std::move(tenant));
    }
    absl::StrAppend(&cast.manifests, "---\n", text.str(), "\n");
  }
  if (cast.tenants.size() != kTenants) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": holds ", cast.tenants.size(), " tenants; the demo is made for ", kTenants));
  }
  std::stable_sort(cast.tenants.begin(), cast.tenants.end(),
                   [](const DemoTenant& a, const DemoTenant& b) { return a.dram_limit > b.dram_limit; });
  for (size_t i = 0; i < kTenants; ++i) {
    cast.tenants[i].share_from = kShareBounds[i];
    cast.tenants[i].share_to = kShareBounds[i + 1];
  }
  return cast;
}

IdealHits IdealOf(const Trace& trace, const DemoTenant& tenant) {
  IdealHits ideal;
  absl::flat_hash_set<uint64_t> seen;
  for (const TraceRequest& request : trace.requests) {
    const uint32_t share = DemoShareOf(request);
    if (share < tenant.share_from || share >= tenant.share_to) continue;
    uint64_t matched = 0;
    while (matched < request.blocks.size() && seen.contains(request.blocks[matched])) ++matched;
    ++ideal.requests;
    ideal.tokens_asked += request.input_tokens;
    ideal.tokens_hit += std::min(matched * kTraceBlockTokens, request.input_tokens);
    seen.insert(request.blocks.begin(), request.blocks.end());
  }
  return ideal;
}

}  // namespace kvartal::bench
