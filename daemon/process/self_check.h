// Runs an expensive check in a copy of the process, so that the daemon serves on while it runs and survives what it
// finds. Confined to the engine loop. Invariant: the copy ends with its check, with kSelfCheckSeconds, or with the
// daemon, whichever is first.
#pragma once

#include <functional>

#include "absl/functional/any_invocable.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"

namespace kvartal::process {

// `check` ends the copy (a failing KV_CHECK) or returns. `done` runs on the loop: Internal with what the check printed
// when it did not return.
void RunSelfCheck(EventLoop* loop, const std::function<void()>& check, absl::AnyInvocable<void(absl::Status)> done);

}  // namespace kvartal::process
