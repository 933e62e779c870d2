// Where the devices of a virtual node return to: what was posted runs, in order, when the owner of the node says so.
// Confined to the thread of the node.
// Invariant: a callback runs at most once; what is still queued at destruction is dropped unrun.
#pragma once

#include <deque>
#include <utility>

#include "daemon/base/event_loop.h"

namespace kvartal::trace_engine {

class CompletionQueue : public Executor {
 public:
  void Post(absl::AnyInvocable<void()> callback) override { queue_.push_back(std::move(callback)); }

  // Until nothing is queued, what the callbacks post included.
  void RunAll() {
    while (!queue_.empty()) {
      absl::AnyInvocable<void()> callback = std::move(queue_.front());
      queue_.pop_front();
      callback();
    }
  }

 private:
  std::deque<absl::AnyInvocable<void()>> queue_;
};

}  // namespace kvartal::trace_engine
