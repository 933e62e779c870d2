// Threads with one bounded queue, for everything slow: disk I/O, RocksDB, populate and punch.
// Thread-safe. Work is run in submission order when there is one thread. Destruction runs what was accepted, then
// joins.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"

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
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> queue_;  // Guarded by mutex_
  size_t running_ = 0;      // Guarded by mutex_
  bool stopping_ = false;   // Guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace kvartal
