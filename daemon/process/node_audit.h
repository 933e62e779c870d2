// What a node tells its audit log, in that log's words. Does nothing where the configuration has no audit log.
// Confined to the engine loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/attach/attach_stats.h"
#include "daemon/base/clock.h"
#include "daemon/base/status.h"
#include "daemon/control/audit_log.h"
#include "daemon/engine/deletion_receipt.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::process {

class NodeAudit {
 public:
  // `path` "": off.
  static absl::StatusOr<std::unique_ptr<NodeAudit>> Open(const std::string& path, const Clock* clock);

  void Door(const attach::DoorEvent& event);
  void InForce(const policy::PolicyTable& table);
  void Refused(const policy::PolicyTable& in_force, const absl::Status& why);
  void DropAsked(const std::string& tenant);
  void DropFailed(const std::string& tenant, const absl::Status& why);
  void Deleted(const engine::DeletionReceipt& receipt);
  void Reopen();

  uint64_t written() const { return log_ == nullptr ? 0 : log_->written(); }
  size_t pending() const { return log_ == nullptr ? 0 : log_->pending(); }
  uint64_t lost() const { return log_ == nullptr ? 0 : log_->lost(); }

 private:
  explicit NodeAudit(std::unique_ptr<control::AuditLog> log) : log_(std::move(log)) {}
  void Write(control::AuditEvent event);

  std::unique_ptr<control::AuditLog> log_;
  std::string version_;  // of the last policy told of: reading the same again is no event
};

}  // namespace kvartal::process
