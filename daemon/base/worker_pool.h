// Threads with one bounded queue, for everything slow: disk I/O, RocksDB, populate and punch.
// Thread-safe. Work is run in submission order when there is one thread. Destruction runs what was accepted, then
// joins.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "daemon/base/mutex.h"

namespace kvartal {

class WorkerPool {
 public:
  using Work = absl::AnyInvocable<void()>;

  // `name` (at most 15 characters) is what the kernel shows for its threads.
  WorkerPool(std::string name, int threads, size_t queue_max);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when the queue is full: a refusal, never a wait.
  [[nodiscard]] bool TrySubmit(Work work);
  // Accepted and not yet finished.
  size_t Pending() const;

 private:
  void RunThread();

  const std::string name_;
  const size_t queue_max_;
  mutable Mutex mutex_;
  Condition wake_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvartal
