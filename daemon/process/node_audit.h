// What a node tells its audit log, in that log's words. Does nothing where the configuration has no audit log.
// Confined to the engine loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "daemon/attach/attach_stats.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/control/audit_log.h"
#include "daemon/engine/deletion_receipt.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::process {

class NodeAudit {
 public:
  // `path` "": off. Both outlive it.
  static absl::StatusOr<std::unique_ptr<NodeAudit>> Open(const std::string& path, const Clock* clock,
                                                         Executor* executor);

  void Door(const attach::DoorEvent& event);
  // What was read: what is in force now, and why something beside it is not (OK: all is). Each is told once, however
  // often it is read; that a refusal has ended, too.
  void Policy(const policy::PolicyTable& in_force, const absl::Status& refused);
  void DropAsked(const std::string& tenant);
  void DropFailed(const std::string& tenant, const absl::Status& why);
  // `kept` is run on the executor; where there is no log it is kept by being told.
  void Deleted(const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept);
  void Reopen();

  uint64_t written() const { return log_ == nullptr ? 0 : log_->written(); }
  size_t pending() const { return log_ == nullptr ? 0 : log_->pending(); }
  uint64_t lost() const { return log_ == nullptr ? 0 : log_->lost(); }

 private:
  NodeAudit(std::unique_ptr<control::AuditLog> log, Executor* executor) : log_(std::move(log)), executor_(executor) {}
  void Write(control::AuditEvent&& event);

  const std::unique_ptr<control::AuditLog> log_;
  Executor* const executor_;
  std::string version_;  // of the last policy told of: reading the same again is no event
  absl::Status refused_;
};

}  // namespace kvartal::process
