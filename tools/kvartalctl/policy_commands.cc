#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "crds/quantity.h"
#include "daemon/config/node_config.h"
#include "daemon/control/policy_source.h"
#include "daemon/process/described_node.h"
#include "tools/kvartalctl/commands.h"

namespace kvartal::ctl {
namespace {

struct Verdict {
  absl::Status status;
  std::vector<std::string> warnings;
  size_t tenants = 0;
};

// Of a node nobody described: it has keys.
policy::NodeCapacity UnknownCapacity() {
  policy::NodeCapacity capacity;
  capacity.bytes.fill(crds::kUnknownCapacityBytes);
  capacity.encrypts_nvme = true;
  return capacity;
}

Verdict Validate(const std::string& path, const std::optional<config::NodeConfig>& node) {
  const policy::NodeCapacity capacity = node ? process::CapacityOf(*node) : UnknownCapacity();
  std::error_code error;
  absl::StatusOr<control::LoadedPolicy> loaded = std::filesystem::is_directory(path, error)
                                                     ? control::LoadPolicyFolder(path, capacity)
                                                     : control::LoadPolicyFiles({path}, capacity);
  if (!loaded.ok()) return {loaded.status(), {}, 0};
  Verdict verdict = {absl::OkStatus(), std::move(loaded->warnings), loaded->table->tenants().size()};
  if (!node) return verdict;
  const std::vector<std::string> idle = control::SubjectsOfNobody(*loaded->table, process::IdentitiesOf(*node));
  verdict.warnings.insert(verdict.warnings.end(), idle.begin(), idle.end());
  return verdict;
}

Verdict Validate(const std::string& path, const std::string& config_path) {
  if (config_path.empty()) return Validate(path, std::nullopt);
  absl::StatusOr<config::NodeConfig> node = config::LoadNodeConfig(config_path);
  if (!node.ok()) return {node.status(), {}, 0};
  return Validate(path, *std::move(node));
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
  std::printf("%s is valid: %s, %s%s\n", path.c_str(), Counted(verdict.tenants, "tenant").c_str(),
              Counted(verdict.warnings.size(), "warning").c_str(),
              config.empty() ? " (whether it fits a node: add --config FILE of that node)" : "");
  return 0;
}

}  // namespace kvartal::ctl
