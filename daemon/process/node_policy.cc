#include "daemon/process/node_policy.h"

#include <utility>

#include "daemon/base/log.h"
#include "daemon/control/policy_source.h"

namespace kvartal::process {
namespace {
constexpr int64_t kNsPerMs = 1'000'000;
}  // namespace

policy::NodeCapacity CapacityOf(const config::NodeConfig& config) {
  policy::NodeCapacity capacity;
  capacity.bytes[TierIndex(TierKind::kDram)] = config.dram_bytes;
  for (const config::NvmeConfig& nvme : config.nvme) capacity.bytes[TierIndex(TierKind::kNvme)] += nvme.size_bytes;
  return capacity;
}

absl::StatusOr<std::unique_ptr<NodePolicy>> NodePolicy::Load(const config::NodeConfig& config, const Clock* clock) {
  std::unique_ptr<NodePolicy> policy(new NodePolicy(config.policy_dir, CapacityOf(config), clock));
  KV_RETURN_IF_ERROR(policy->Read());
  return policy;
}

absl::Status NodePolicy::Read() {
  absl::StatusOr<control::LoadedPolicy> loaded = control::LoadPolicyFolder(folder_, capacity_);
  if (!loaded.ok()) return loaded.status();
  table_ = std::move(loaded->table);
  warnings_ = std::move(loaded->warnings);
  loaded_ns_ = clock_->MonotonicNs();
  for (const std::string& warning : warnings_) Log(LogLevel::kWarning, "policy", warning);
  return absl::OkStatus();
}

absl::Status NodePolicy::Reload() {
  const absl::Status status = Read();
  last_error_ = std::string(status.message());
  if (status.ok()) {
    Log(LogLevel::kInfo, "policy", "version ", table_->version(), " in force: ", table_->tenants().size(), " tenants");
  } else {
    ++reload_failures_;
    Log(LogLevel::kError, "policy", "refused, version ", table_->version(), " stays in force: ", last_error_);
  }
  return status;
}

uint64_t NodePolicy::age_ms() const { return static_cast<uint64_t>((clock_->MonotonicNs() - loaded_ns_) / kNsPerMs); }

}  // namespace kvartal::process
