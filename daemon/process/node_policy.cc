#include "daemon/process/node_policy.h"

#include <utility>

#include "daemon/base/log.h"

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
  KV_ASSIGN_OR_RETURN(control::LoadedPolicy loaded, policy->ReadFolder());
  policy->PutInForce(std::move(loaded));
  return policy;
}

absl::StatusOr<control::LoadedPolicy> NodePolicy::ReadFolder() const {
  return control::LoadPolicyFolder(folder_, capacity_);
}

absl::Status NodePolicy::Replace(absl::StatusOr<control::LoadedPolicy> read) {
  last_error_ = std::string(read.status().message());
  if (!read.ok()) {
    ++reload_failures_;
    Log(LogLevel::kError, "policy", "refused, version ", table_->version(), " stays in force: ", last_error_);
    return read.status();
  }
  PutInForce(*std::move(read));
  Log(LogLevel::kInfo, "policy", "version ", table_->version(), " in force: ", table_->tenants().size(), " tenants");
  return absl::OkStatus();
}

void NodePolicy::PutInForce(control::LoadedPolicy loaded) {
  table_ = std::move(loaded.table);
  warnings_ = std::move(loaded.warnings);
  loaded_ns_ = clock_->MonotonicNs();
  for (const std::string& warning : warnings_) Log(LogLevel::kWarning, "policy", warning);
}

uint64_t NodePolicy::age_ms() const { return static_cast<uint64_t>((clock_->MonotonicNs() - loaded_ns_) / kNsPerMs); }

}  // namespace kvartal::process
