#include "daemon/process/node_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "crds/field_reader.h"
#include "daemon/base/log.h"
#include "daemon/control/folder_feed.h"
#include "daemon/control/stream_feed.h"

namespace kvartal::process {
namespace {

// As much as a log line may have.
absl::Status Shortened(const absl::Status& status) {
  return absl::Status(status.code(), crds::FirstFindings({status.message().data(), status.message().size()}));
}

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

NodePolicy::NodePolicy(const config::NodeConfig& config, const Clock* clock)
    : known_(IdentitiesOf(config)), clock_(clock), feed_(FeedOf(config, clock)) {}

absl::StatusOr<std::unique_ptr<NodePolicy>> NodePolicy::Load(const config::NodeConfig& config, const Clock* clock) {
  std::unique_ptr<NodePolicy> policy(new NodePolicy(config, clock));
  absl::StatusOr<control::LoadedPolicy> loaded = policy->feed_->Begin();
  if (!loaded.ok()) return Shortened(loaded.status());
  policy->PutInForce(*std::move(loaded));
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

void NodePolicy::TellRefused(const std::string& what, const std::string& why) {
  ++reload_failures_;
  if (why == last_error_) return;
  last_error_ = why;
  Log(LogLevel::kError, "policy", what, ": ", why);
}

absl::Status NodePolicy::Refuse(const absl::Status& why) {
  TellRefused(absl::StrCat("refused, version ", table_->version(), " stays in force"), std::string(why.message()));
  return why;
}

absl::Status NodePolicy::Replace(absl::StatusOr<control::LoadedPolicy> read) {
  if (!read.ok()) return Refuse(Shortened(read.status()));
  wants_restart_ = read->capacity_waits && table_->tenants().empty();
  if (wants_restart_) return Refuse(Shortened(absl::FailedPreconditionError(read->refused)));
  if (read->table->capacity().bytes != table_->capacity().bytes) {
    return Refuse(absl::FailedPreconditionError(
        absl::StrCat(read->pool.empty() ? "the set, without a KVNodePool," : absl::StrCat(read->pool, ":"), " ",
                     control::CapacityWaits(read->table->capacity(), table_->capacity()))));
  }
  PutInForce(*std::move(read));
  Log(LogLevel::kInfo, "policy", "version ", table_->version(), " in force; tenants: ", table_->tenants().size());
  return absl::OkStatus();
}

void NodePolicy::PutInForce(control::LoadedPolicy loaded) {
  table_ = std::move(loaded.table);
  const std::vector<std::string> told = std::exchange(warnings_, std::move(loaded.warnings));
  const std::vector<std::string> idle = control::SubjectsOfNobody(*table_, known_);
  warnings_.insert(warnings_.end(), idle.begin(), idle.end());
  loaded_ns_ = clock_->MonotonicNs();
  if (loaded.refused.empty())
    last_error_.clear();
  else
    TellRefused("not all is in force", crds::FirstFindings(loaded.refused));
  for (const std::string& warning : warnings_) {
    if (std::find(told.begin(), told.end(), warning) == told.end()) Log(LogLevel::kWarning, "policy", warning);
  }
}

uint64_t NodePolicy::age_ms() const { return static_cast<uint64_t>((clock_->MonotonicNs() - loaded_ns_) / kNsPerMs); }

}  // namespace kvartal::process
