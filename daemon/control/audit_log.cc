#include "daemon/control/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::control {
namespace {

using Keep = AuditEvent::Keep;

absl::StatusOr<UniqueFd> OpenToAppend(const std::string& path) {
  const auto refused = [&](const char* why) {
    return absl::FailedPreconditionError(
        absl::StrCat("audit log ", path, ": ", why,
                     "; its folder must exist and it must be a file of this user, or leave auditLog out"));
  };
  // A pipe without a reader would hold the daemon up for ever.
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
  struct stat info{};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return refused(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return refused("is not a regular file");
  if (::fchmod(file.get(), 0600) != 0) return refused(std::strerror(errno));
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path, const Clock* clock) {
  KV_ASSIGN_OR_RETURN(UniqueFd file, OpenToAppend(path));
  std::unique_ptr<AuditLog> log(new AuditLog(path, clock, std::move(file)));
  log->Write(AuditEvent("open", Keep::kSynced).With("pid", static_cast<uint64_t>(::getpid())));
  return log;
}

AuditLog::AuditLog(std::string path, const Clock* clock, UniqueFd file)
    : path_(std::move(path)),
      clock_(clock),
      file_(std::move(file)),
      writer_(std::make_unique<WorkerPool>("kv-audit", 1, kAuditQueueMax)) {}

AuditLog::~AuditLog() {
  writer_.reset();
  WriteNow(AuditEvent("close", Keep::kSynced), clock_->WallMs());
}

void AuditLog::Write(AuditEvent event, Kept kept) {
  const int64_t wall_ms = clock_->WallMs();
  const bool may_wait = event.keep() == Keep::kSynced || pending() < kAuditDoorQueueMax;
  // Shared, since what the queue has no room for is gone with it.
  const auto tell = std::make_shared<Kept>(std::move(kept));
  if (may_wait &&
      writer_->TrySubmit([this, wall_ms, tell, event = std::move(event)] { (*tell)(WriteNow(event, wall_ms)); })) {
    return;
  }
  CountLost(1);
  (*tell)(false);
}

void AuditLog::Reopen() {
  if (!writer_->TrySubmit([this] { ReopenNow(); })) {
    Log(LogLevel::kWarning, "audit", path_, " is not reopened: ", kAuditQueueMax, " events wait; ask again");
  }
}

void AuditLog::CountLost(uint64_t events) {
  lost_.fetch_add(events, std::memory_order_relaxed);
  untold_.fetch_add(events, std::memory_order_relaxed);
}

bool AuditLog::WriteNow(const AuditEvent& event, int64_t wall_ms) {
  const uint64_t untold = untold_.load(std::memory_order_relaxed);
  bool kept = untold == 0 || Append(AuditEvent("lost", Keep::kSynced).With("count", untold), wall_ms);
  if (kept) untold_.fetch_sub(untold, std::memory_order_relaxed);
  kept = kept && Append(event, wall_ms);
  if (!kept) CountLost(1);
  return kept;
}

bool AuditLog::Append(const AuditEvent& event, int64_t wall_ms) {
  const std::string line = (torn_ ? "\n" : "") + event.Line(wall_ms, serial_ + 1);
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t wrote = ::write(file_.get(), line.data() + done, line.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  if (done > 0) torn_ = done < line.size();
  const bool whole = done == line.size();
  if (whole) ++serial_;
  // A line that is there and might not survive is counted as lost: too much is told rather than too little.
  const bool kept = whole && (event.keep() == Keep::kWritten || ::fdatasync(file_.get()) == 0);
  if (kept) {
    written_.fetch_add(1, std::memory_order_relaxed);
  } else if (!failing_) {
    Log(LogLevel::kError, "audit", path_, ": ", std::strerror(errno), "; events are lost, and counted, until it works");
  }
  failing_ = !kept;
  return kept;
}

void AuditLog::ReopenNow() {
  absl::StatusOr<UniqueFd> file = OpenToAppend(path_);
  if (!file.ok()) {
    Log(LogLevel::kError, "audit", file.status().message(), ". Going on in the old file");
    return;
  }
  ::fdatasync(file_.get());
  file_ = *std::move(file);
  torn_ = false;
  WriteNow(AuditEvent("reopen", Keep::kSynced), clock_->WallMs());
}

}  // namespace kvartal::control
