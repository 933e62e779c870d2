#include "daemon/process/node_audit.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvartal::process {
namespace {

using control::AuditEvent;
using Keep = AuditEvent::Keep;

std::string_view MessageOf(const absl::Status& status) {
  const absl::string_view message = status.message();
  return {message.data(), message.size()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeAudit>> NodeAudit::Open(const std::string& path, const Clock* clock,
                                                           Executor* executor) {
  std::unique_ptr<control::AuditLog> log;
  if (!path.empty()) {
    KV_ASSIGN_OR_RETURN(log, control::AuditLog::Open(path, clock));
  }
  return std::unique_ptr<NodeAudit>(new NodeAudit(std::move(log), executor));
}

void NodeAudit::Write(AuditEvent&& event) {
  if (log_ != nullptr) log_->Write(std::move(event));
}

void NodeAudit::Door(const attach::DoorEvent& event) {
  const bool denied = event.denial != attach::DenialReason::kNone;
  const bool cut = event.cut != attach::CutReason::kNone;
  AuditEvent out(denied ? "deny" : cut ? "end" : "attach", Keep::kWritten);
  if (denied) out = std::move(out).With("reason", attach::DenialReasonName(event.denial));
  if (cut) out = std::move(out).With("reason", attach::CutReasonName(event.cut));
  if (!event.various) {
    out = std::move(out)
              .With("tenant", event.tenant)
              .With("attestor", event.attestor)
              .With("uid", event.uid)
              .With("pid", event.pid);
  }
  if (!event.pod.empty()) out = std::move(out).With("pod", event.pod);
  if (event.repeated > 0) out = std::move(out).With("repeated", event.repeated);
  Write(denied ? std::move(out).With("why", event.why)
               : std::move(out).With("client", event.client).With("group", event.group));
}

void NodeAudit::Policy(const policy::PolicyTable& in_force, const absl::Status& refused) {
  const absl::Status before = std::exchange(refused_, refused);
  const bool refusal_ended = refused.ok() && !before.ok();
  if (std::exchange(version_, in_force.version()) != in_force.version() || refusal_ended) {
    Write(AuditEvent("policy", Keep::kSynced).With("version", version_).With("tenants", in_force.tenants().size()));
  }
  if (refused.ok() || refused == before) return;
  Write(AuditEvent("policy_refused", Keep::kSynced).With("version", version_).With("error", MessageOf(refused)));
}

void NodeAudit::DropAsked(const std::string& tenant) {
  Write(AuditEvent("drop", Keep::kSynced).With("tenant", tenant));
}

void NodeAudit::DropFailed(const std::string& tenant, const absl::Status& why) {
  Write(AuditEvent("drop_failed", Keep::kSynced).With("tenant", tenant).With("error", MessageOf(why)));
}

void NodeAudit::Deleted(const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) {
  if (log_ == nullptr) return kept(true);
  log_->Write(
      AuditEvent("deletion", Keep::kSynced)
          .With("tenant", receipt.tenant)
          .With("cause", policy::DropReasonName(receipt.reason))
          .With("outcome", receipt.unerased_blocks == 0 ? "erased" : "incomplete")
          .With("blocks", receipt.blocks)
          .With("bytes", receipt.bytes())
          .With("dram_bytes", receipt.tier_bytes[TierIndex(TierKind::kDram)])
          .With("nvme_bytes", receipt.tier_bytes[TierIndex(TierKind::kNvme)])
          .With("unerased_blocks", receipt.unerased_blocks)
          .With("oldest_first_commit_ms", static_cast<uint64_t>(std::max<int64_t>(receipt.oldest_first_commit_ms, 0)))
          .With("resumed", uint64_t{receipt.resumed ? 1u : 0u}),
      [executor = executor_, kept = std::move(kept)](bool is_kept) mutable {
        executor->Post([kept = std::move(kept), is_kept]() mutable { kept(is_kept); });
      });
}

void NodeAudit::Reopen() {
  if (log_ != nullptr) log_->Reopen();
}

}  // namespace kvartal::process
