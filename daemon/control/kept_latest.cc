#include "daemon/control/kept_latest.h"

#include "daemon/base/check.h"
#include "daemon/base/log.h"

namespace kvartal::control {

void KeptLatest::Keep(std::string bytes, WorkerPool* worker) {
  {
    const MutexLock lock(mutex_);
    newest_ = std::move(bytes);
    if (std::exchange(writing_, true)) return;
  }
  const bool accepted = worker->TrySubmit([this] { WriteAll(); });
  KV_CHECK(accepted);
}

void KeptLatest::WriteAll() {
  while (const std::optional<std::string> bytes = Next()) {
    if (const absl::Status kept = file_.Write(*bytes); !kept.ok())
      Log(LogLevel::kWarning, "policy", what_, " are not kept for a restart: ", kept.message());
  }
}

std::optional<std::string> KeptLatest::Next() {
  const MutexLock lock(mutex_);
  writing_ = newest_.has_value();
  return std::exchange(newest_, std::nullopt);
}

}  // namespace kvartal::control
