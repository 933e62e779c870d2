#include "daemon/process/node_audit.h"

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

absl::StatusOr<std::unique_ptr<NodeAudit>> NodeAudit::Open(const std::string& path, const Clock* clock) {
  std::unique_ptr<control::AuditLog> log;
  if (!path.empty()) {
    KV_ASSIGN_OR_RETURN(log, control::AuditLog::Open(path, clock));
  }
  return std::unique_ptr<NodeAudit>(new NodeAudit(std::move(log)));
}

void NodeAudit::Write(AuditEvent event) {
  if (log_ != nullptr) log_->Write(std::move(event));
}

void NodeAudit::Door(const attach::DoorEvent& event) {
  const bool denied = event.denial != attach::DenialReason::kNone;
  AuditEvent out(denied ? "deny" : "attach", Keep::kWritten);
  if (denied) out = std::move(out).With("reason", attach::DenialReasonName(event.denial));
  out = std::move(out)
            .With("tenant", event.tenant)
            .With("attestor", event.attestor)
            .With("uid", event.uid)
            .With("pid", event.pid);
  Write(denied ? std::move(out).With("why", event.why)
               : std::move(out).With("client", event.client).With("group", event.group));
}

void NodeAudit::InForce(const policy::PolicyTable& table) {
  if (table.version() == version_) return;
  version_ = table.version();
  Write(AuditEvent("policy", Keep::kSynced).With("version", version_).With("tenants", table.tenants().size()));
}

void NodeAudit::Refused(const policy::PolicyTable& in_force, const absl::Status& why) {
  Write(AuditEvent("policy_refused", Keep::kSynced).With("version", in_force.version()).With("error", MessageOf(why)));
}

void NodeAudit::DropAsked(const std::string& tenant) {
  Write(AuditEvent("drop", Keep::kSynced).With("tenant", tenant));
}

void NodeAudit::Dropped(const std::string& tenant, const absl::StatusOr<uint64_t>& bytes) {
  AuditEvent out = AuditEvent("deletion", Keep::kSynced).With("tenant", tenant).With("cause", "drop");
  if (bytes.ok())
    Write(std::move(out).With("outcome", "erased").With("bytes", *bytes));
  else
    Write(std::move(out).With("outcome", "incomplete").With("error", MessageOf(bytes.status())));
}

void NodeAudit::Reopen() {
  if (log_ != nullptr) log_->Reopen();
}

}  // namespace kvartal::process
