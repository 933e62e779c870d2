#include "daemon/process/node_policy.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/control/folder_feed.h"
#include "daemon/control/stream_feed.h"

namespace kvartal::process {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

std::unique_ptr<control::PolicyFeed> FeedOf(const config::NodeConfig& config, const Clock* clock) {
  if (!config.policy_stream) return std::make_unique<control::FolderFeed>(config.policy_dir, CapacityOf(config));
  control::StreamFeedOptions options;
  options.stream = {config.policy_stream->address, config.policy_stream->ca_file, config.policy_stream->token_file};
  options.keep_in = config.policy_stream->keep_in;
  options.node = config.node_name;
  options.program = absl::StrCat("kvartald ", KVARTAL_VERSION);
  return std::make_unique<control::StreamFeed>(std::move(options), CapacityOf(config), clock);
}

}  // namespace

policy::NodeCapacity CapacityOf(const config::NodeConfig& config) {
  policy::NodeCapacity capacity;
  capacity.bytes[TierIndex(TierKind::kDram)] = config.dram_bytes;
  for (const config::NvmeConfig& nvme : config.nvme) capacity.bytes[TierIndex(TierKind::kNvme)] += nvme.size_bytes;
  capacity.encrypts_nvme = !config.nvme_key_file.empty();
  return capacity;
}

NodePolicy::NodePolicy(const config::NodeConfig& config, const Clock* clock)
    : attest_tokens_(config.kubernetes.has_value()),
      clock_(clock),
      kept_for_restart_(config.policy_stream.has_value()),
      feed_(FeedOf(config, clock)) {}

absl::StatusOr<std::unique_ptr<NodePolicy>> NodePolicy::Load(const config::NodeConfig& config, const Clock* clock) {
  std::unique_ptr<NodePolicy> policy(new NodePolicy(config, clock));
  KV_ASSIGN_OR_RETURN(control::LoadedPolicy loaded, policy->feed_->Begin());
  policy->PutInForce(std::move(loaded));
  return policy;
}

void NodePolicy::Watch(EventLoop* loop, OnRead on_read) {
  on_read_ = std::move(on_read);
  feed_->Watch(loop, [this](absl::StatusOr<control::LoadedPolicy> read) {
    absl::Status status = Replace(std::move(read));
    on_read_(status);
    return status;
  });
}

absl::Status NodePolicy::Refuse(const absl::Status& why) {
  last_error_ = std::string(why.message());
  ++reload_failures_;
  Log(LogLevel::kError, "policy", "refused, version ", table_->version(), " stays in force: ", last_error_);
  return why;
}

absl::Status NodePolicy::Replace(absl::StatusOr<control::LoadedPolicy> read) {
  if (!read.ok()) return Refuse(read.status());
  if (read->table->capacity().bytes != table_->capacity().bytes) {
    wants_restart_ = kept_for_restart_ && table_->tenants().empty();
    return Refuse(absl::FailedPreconditionError(
        "the KVNodePool states another capacity than at the start of the daemon, which is when it is taken: restart "
        "kvartald to put this set in force"));
  }
  last_error_.clear();
  PutInForce(*std::move(read));
  Log(LogLevel::kInfo, "policy", "version ", table_->version(), " in force: ", table_->tenants().size(), " tenants");
  return absl::OkStatus();
}

void NodePolicy::PutInForce(control::LoadedPolicy loaded) {
  table_ = std::move(loaded.table);
  warnings_ = std::move(loaded.warnings);
  for (const policy::TenantRules& rules : table_->tenants()) {
    if (attest_tokens_ || rules.service_accounts.empty() || !rules.uids.empty() || !rules.sockets.empty()) continue;
    warnings_.push_back(absl::StrCat(rules.name,
                                     ": spec.subjects names service accounts only, and the configuration "
                                     "has no `kubernetes`: nobody may attach here"));
  }
  loaded_ns_ = clock_->MonotonicNs();
  for (const std::string& warning : warnings_) Log(LogLevel::kWarning, "policy", warning);
}

uint64_t NodePolicy::age_ms() const { return static_cast<uint64_t>((clock_->MonotonicNs() - loaded_ns_) / kNsPerMs); }

}  // namespace kvartal::process
