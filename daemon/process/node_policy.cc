#include "daemon/process/node_policy.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
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
  std::unique_ptr<NodePolicy> policy(new NodePolicy(config, clock));
  KV_ASSIGN_OR_RETURN(control::LoadedPolicy loaded, policy->folder_.Read());
  policy->PutInForce(std::move(loaded));
  return policy;
}

void NodePolicy::Watch(EventLoop* loop, OnRead on_read) {
  loop_ = loop;
  on_read_ = std::move(on_read);
  watching_ = true;
  reader_ = std::make_unique<WorkerPool>("kv-policy", 1, kReloadsMax);
  loop_->RunAfterMs(kPolicyPollMs, [this] { Poll(); });
}

void NodePolicy::Poll() {
  if (!watching_) return;
  // A folder that does not answer holds one reading, not a queue of them.
  if (!reading()) {
    const bool accepted = reader_->TrySubmit([this] {
      std::optional<absl::StatusOr<control::LoadedPolicy>> read = folder_.ReadIfChanged();
      if (!read) return;
      loop_->Post([this, read = *std::move(read)]() mutable { on_read_(Replace(std::move(read))); });
    });
    KV_CHECK(accepted);  // only this thread submits
  }
  loop_->RunAfterMs(kPolicyPollMs, [this] { Poll(); });
}

void NodePolicy::Reload(absl::AnyInvocable<void(absl::Status)> done) {
  if (reader_->Pending() >= kReloadsMax) {
    Log(LogLevel::kWarning, "policy", "a reload was refused: ", kReloadsMax, " wait for the folder already");
    return done(absl::ResourceExhaustedError(
        absl::StrCat(folder_path_, ": ", kReloadsMax, " reloads wait for this folder: see why it takes so long")));
  }
  const bool accepted = reader_->TrySubmit([this, done = std::move(done)]() mutable {
    loop_->Post([this, done = std::move(done), read = folder_.Read()]() mutable {
      const absl::Status status = Replace(std::move(read));
      on_read_(status);
      done(status);
    });
  });
  KV_CHECK(accepted);  // only this thread submits
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
