#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/units.h"
#include "daemon/config/node_config.h"
#include "daemon/control/policy_source.h"
#include "tools/kvartalctl/commands.h"

namespace kvartal::ctl {
namespace {

// Stands for a node nobody described: percentages resolve, every guarantee fits, there are keys.
constexpr uint64_t kUnknownCapacityBytes = 1024 * kTiB;

struct Verdict {
  absl::Status status;
  std::vector<std::string> warnings;
  size_t tenants = 0;
};

absl::StatusOr<policy::NodeCapacity> CapacityFor(const std::string& config_path) {
  policy::NodeCapacity capacity;
  capacity.bytes.fill(kUnknownCapacityBytes);
  capacity.encrypts_nvme = true;
  if (config_path.empty()) return capacity;
  KV_ASSIGN_OR_RETURN(const config::NodeConfig config, config::LoadNodeConfig(config_path));
  capacity.bytes.fill(0);
  capacity.bytes[TierIndex(TierKind::kDram)] = config.dram_bytes;
  for (const config::NvmeConfig& nvme : config.nvme) capacity.bytes[TierIndex(TierKind::kNvme)] += nvme.size_bytes;
  capacity.encrypts_nvme = !config.nvme_key_file.empty();
  return capacity;
}

Verdict Validate(const std::string& path, const std::string& config_path) {
  const absl::StatusOr<policy::NodeCapacity> capacity = CapacityFor(config_path);
  if (!capacity.ok()) return {capacity.status(), {}, 0};
  std::error_code error;
  absl::StatusOr<control::LoadedPolicy> loaded = std::filesystem::is_directory(path, error)
                                                     ? control::LoadPolicyFolder(path, *capacity)
                                                     : control::LoadPolicyFiles({path}, *capacity);
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
