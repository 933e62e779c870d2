// Signals as events of the loop instead of handlers.
// Confined to the loop.
// Invariant: SIGTERM, SIGINT and SIGHUP are blocked in every thread, so they arrive here and nowhere else.
#pragma once

#include <functional>
#include <memory>

#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::process {

// Before any thread is made: threads inherit the mask. Also ignores SIGPIPE: a peer that is gone is an error of its
// write.
void BlockSignals();

class SignalWatch {
 public:
  static absl::StatusOr<std::unique_ptr<SignalWatch>> Create(EventLoop* loop,
                                                             std::function<void(int signal)> on_signal);
  ~SignalWatch();

 private:
  SignalWatch(EventLoop* loop, UniqueFd fd) : loop_(loop), fd_(std::move(fd)) {}
  EventLoop* const loop_;
  const UniqueFd fd_;
};

}  // namespace kvartal::process
