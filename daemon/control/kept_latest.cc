#include "daemon/control/kept_latest.h"

#include "daemon/base/check.h"
#include "daemon/base/log.h"

namespace kvartal::control {

void KeptLatest::Keep(std::string bytes, EventLoop* loop, WorkerPool* worker, const std::shared_ptr<bool>& alive) {
  if (writing_) {
    newest_ = std::move(bytes);
    waits_ = true;
    return;
  }
  writing_ = true;
  const bool accepted = worker->TrySubmit([this, loop, worker, alive, bytes = std::move(bytes)] {
    if (const absl::Status kept = file_.Write(bytes); !kept.ok())
      Log(LogLevel::kWarning, "policy", what_, " are not kept for a restart: ", kept.message());
    loop->Post([this, loop, worker, alive] {
      if (!*alive) return;
      writing_ = false;
      if (std::exchange(waits_, false)) Keep(std::move(newest_), loop, worker, alive);
    });
  });
  KV_CHECK(accepted);
}

}  // namespace kvartal::control
