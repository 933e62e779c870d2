#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crds/manifest.h"
#include "crds/yaml_reader.h"
#include "daemon/base/units.h"
#include "daemon/config/node_config.h"
#include "daemon/control/policy_source.h"
#include "tools/kvartalctl/commands.h"

namespace kvartal::ctl {
namespace {

// Stands for a node nobody described: percentages resolve and every guarantee fits.
constexpr uint64_t kUnknownCapacityBytes = 1024 * kTiB;

struct Verdict {
  absl::Status status;
  std::vector<std::string> warnings;
  size_t tenants = 0;
};

absl::StatusOr<policy::NodeCapacity> CapacityFor(const std::string& config_path) {
  policy::NodeCapacity capacity;
  capacity.bytes.fill(kUnknownCapacityBytes);
  if (config_path.empty()) return capacity;
  KV_ASSIGN_OR_RETURN(const config::NodeConfig config, config::LoadNodeConfig(config_path));
  capacity.bytes.fill(0);
  capacity.bytes[TierIndex(TierKind::kDram)] = config.dram_bytes;
  for (const config::NvmeConfig& nvme : config.nvme) capacity.bytes[TierIndex(TierKind::kNvme)] += nvme.size_bytes;
  return capacity;
}

absl::StatusOr<control::LoadedPolicy> LoadOneFile(const std::string& path, policy::NodeCapacity capacity) {
  KV_ASSIGN_OR_RETURN(const std::string text, crds::ReadYamlFile(path));
  KV_ASSIGN_OR_RETURN(const crds::Manifests manifests, crds::ParseManifests(text, path));
  for (const crds::NodePool& pool : manifests.pools) {
    const auto state = [&](TierKind tier, bool stated, const crds::Quantity& size) {
      if (stated) capacity.bytes[TierIndex(tier)] = size.bytes;
    };
    state(TierKind::kHbm, pool.has_hbm, pool.hbm_per_gpu);
    state(TierKind::kDram, pool.has_dram, pool.dram);
    state(TierKind::kNvme, pool.has_nvme, pool.nvme);
  }
  control::LoadedPolicy loaded;
  KV_ASSIGN_OR_RETURN(loaded.table, policy::PolicyTable::Build(manifests.policies, capacity, &loaded.warnings));
  return loaded;
}

Verdict Validate(const std::string& path, const std::string& config_path) {
  const absl::StatusOr<policy::NodeCapacity> capacity = CapacityFor(config_path);
  if (!capacity.ok()) return {capacity.status(), {}, 0};
  std::error_code error;
  absl::StatusOr<control::LoadedPolicy> loaded = std::filesystem::is_directory(path, error)
                                                     ? control::LoadPolicyFolder(path, *capacity)
                                                     : LoadOneFile(path, *capacity);
  if (!loaded.ok()) return {loaded.status(), {}, 0};
  return {absl::OkStatus(), std::move(loaded->warnings), loaded->table->tenants().size()};
}

}  // namespace

int RunPolicyValidate(const Context& context, const std::string& path, const std::string& config) {
  const Verdict verdict = Validate(path, config);
  std::vector<std::string> problems;
  if (!verdict.status.ok()) problems = absl::StrSplit(verdict.status.message(), '\n', absl::SkipEmpty());
  if (context.output != OutputFormat::kTable) {
    PrintData(context.output, {{"valid", verdict.status.ok()},
                               {"tenants", verdict.tenants},
                               {"problems", problems},
                               {"warnings", verdict.warnings}});
    return verdict.status.ok() ? 0 : 1;
  }
  for (const std::string& warning : verdict.warnings) std::printf("warning: %s\n", warning.c_str());
  for (const std::string& problem : problems) std::fprintf(stderr, "%s\n", problem.c_str());
  if (!verdict.status.ok()) return 1;
  std::printf("%s is valid: %zu tenants, %zu warnings%s\n", path.c_str(), verdict.tenants, verdict.warnings.size(),
              config.empty() ? " (whether it fits a node: add --config FILE of that node)" : "");
  return 0;
}

}  // namespace kvartal::ctl
