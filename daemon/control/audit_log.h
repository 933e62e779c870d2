// The audit log: a file of one JSON event a line, appended to by a thread of its own.
// Thread-safe: Write and Reopen come from any thread and never wait; the file belongs to the writer's thread.
// Invariants: an event is written or counted as lost, and a loss is itself an event, written before the next one;
// events are in the order of their Write; the file is its owner's alone (mode 0600); however many come and go at the
// doors, half of the queue is left to what was decided and deleted.
//
// What survives what: a written line survives the end of the process; an event with Keep::kSynced, and all before it,
// survives power loss once it is written; so does everything at a reopen and at the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/worker_pool.h"
#include "daemon/control/audit_event.h"

namespace kvartal::control {

class AuditLog {
 public:
  // FailedPrecondition when `path` cannot be appended to: a node that owes an audit log does not serve without one.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path, const Clock* clock);
  // Writes what was accepted.
  ~AuditLog();

  // `kept` hears whether the event is written, and synced where it asks for that: on the writer's thread, or at once on
  // the caller's when it is lost.
  using Kept = absl::AnyInvocable<void(bool)>;
  void Write(AuditEvent event, Kept kept = [](bool) {});
  // Appends to whatever is at the path from now on: after a rename by a log rotation. The old file is kept in use when
  // the new one cannot be opened.
  void Reopen();

  uint64_t written() const { return written_.load(std::memory_order_relaxed); }
  size_t pending() const { return writer_->Pending(); }  // accepted and not yet written
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  AuditLog(std::string path, const Clock* clock, UniqueFd file);
  // The writer's thread.
  bool WriteNow(const AuditEvent& event, int64_t wall_ms);
  bool Append(const AuditEvent& event, int64_t wall_ms);
  void ReopenNow();
  void CountLost(uint64_t events);

  const std::string path_;
  const Clock* const clock_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> lost_{0};
  std::atomic<uint64_t> untold_{0};  // of the lost: no event has told of them
  // --- the writer's thread alone
  UniqueFd file_;
  uint64_t serial_ = 0;
  bool torn_ = false;                   // the last line is not whole
  bool failing_ = false;                // told in the daemon's log
  std::unique_ptr<WorkerPool> writer_;  // last: its thread uses what is above
};

}  // namespace kvartal::control
