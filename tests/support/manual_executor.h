// An Executor that a test pumps by hand: what was posted runs when the test says so, on the test's thread, in order.
// Post: any thread. Everything else: the thread of the test.
// Invariant: a callback runs at most once; what is still queued at destruction is dropped unrun.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "daemon/base/event_loop.h"

namespace kvartal::testing {

class ManualExecutor : public Executor {
 public:
  void Post(absl::AnyInvocable<void()> callback) override {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(callback));
    }
    posted_.notify_one();
  }

  // False when nothing was queued.
  bool RunOne() {
    absl::AnyInvocable<void()> callback;
    {
      std::lock_guard lock(mutex_);
      if (queue_.empty()) return false;
      callback = std::move(queue_.front());
      queue_.pop_front();
    }
    callback();
    return true;
  }

  // Runs until nothing is queued, what the callbacks post included. Returns how many ran.
  size_t RunAll() {
    size_t ran = 0;
    while (RunOne()) ++ran;
    return ran;
  }

  // For callbacks that other threads post: runs, and waits for more, until `reached` is true. The timeout of the test
  // is what ends a wait for something that never comes.
  template <typename Predicate>
  void RunUntil(Predicate reached) {
    while (!reached()) {
      {
        std::unique_lock lock(mutex_);
        posted_.wait(lock, [this] { return !queue_.empty(); });
      }
      RunOne();
    }
  }

  size_t queued() const {
    std::lock_guard lock(mutex_);
    return queue_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<absl::AnyInvocable<void()>> queue_;  // Guarded by mutex_
};

}  // namespace kvartal::testing
