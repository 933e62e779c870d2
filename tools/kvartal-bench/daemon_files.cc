#include "tools/kvartal-bench/daemon_files.h"

#include "absl/strings/str_cat.h"

namespace kvartal::bench {

std::string ConfigurationText(const DaemonSetup& setup, const std::string& folder) {
  std::string text = absl::StrCat(
      "runDir: ", folder, "\npolicyDir: ", folder, "/policies\nattestUid: true\ndram: {size: ", setup.dram_bytes,
      "}\neviction: ", setup.eviction, "\nleaseMs: ", setup.lease_ms, "\nlogLevel: warning\n");
  if (setup.nvme_bytes != 0) {
    absl::StrAppend(&text, "nvme:\n- {path: ", folder, "/nvme.dat, size: ", setup.nvme_bytes, ", io: ", setup.nvme_io,
                    ", ioThreads: ", setup.nvme_threads, "}\n");
    if (setup.encrypted) absl::StrAppend(&text, "nvmeKeyFile: ", folder, "/nvme.keys\n");
  }
  bool first = true;
  for (const TenantSetup& tenant : setup.tenants) {
    if (tenant.door.empty()) continue;
    if (first) absl::StrAppend(&text, "doors:\n");
    first = false;
    absl::StrAppend(&text, "- {name: ", tenant.door, ", path: ", folder, "/", tenant.door, ".sock}\n");
  }
  return text;
}

std::string KeyText() { return absl::StrCat("1 ", std::string(64, 'b'), "\n"); }

std::string ManifestText(const DaemonSetup& setup) {
  if (!setup.manifests.empty()) return setup.manifests;
  std::string text;
  for (const TenantSetup& tenant : setup.tenants) {
    const std::string subject =
        tenant.uid ? absl::StrCat("{uid: ", *tenant.uid, "}") : absl::StrCat("{socket: ", tenant.door, "}");
    const uint64_t dram = tenant.dram_limit_bytes != 0 ? tenant.dram_limit_bytes : setup.dram_bytes;
    const uint64_t nvme = tenant.nvme_limit_bytes != 0 ? tenant.nvme_limit_bytes : setup.nvme_bytes;
    absl::StrAppend(&text,
                    "---\napiVersion: kvartal.dev/v1alpha1\nkind: TenantKVPolicy\nmetadata: {name: ", tenant.name,
                    ", namespace: bench}\nspec:\n  subjects: [", subject, "]\n  slaTier: ", tenant.sla_tier,
                    "\n  pools:\n  - poolRef: node\n", "    perNode: {dram: {limit: ", dram, "}");
    if (nvme != 0) absl::StrAppend(&text, ", nvme: {limit: ", nvme, "}");
    absl::StrAppend(&text, "}\n  ttl: {dramSeconds: 0, nvmeSeconds: 0}\n");
    if (setup.encrypted) absl::StrAppend(&text, "  encryption: {nvme: Required}\n");
    if (tenant.entries_max) absl::StrAppend(&text, "  index: {maxEntries: ", *tenant.entries_max, "}\n");
  }
  return text;
}

}  // namespace kvartal::bench
