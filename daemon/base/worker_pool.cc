#include "daemon/base/worker_pool.h"

#include <pthread.h>

#include <utility>

namespace kvartal {

WorkerPool::WorkerPool(std::string name, int threads, size_t queue_max)
    : name_(std::move(name)), queue_max_(queue_max) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TrySubmit(Work work) {
  {
    MutexLock lock(mutex_);
    if (stopping_ || queue_.size() >= queue_max_) return false;
    queue_.push_back(std::move(work));
  }
  wake_.NotifyOne();
  return true;
}

size_t WorkerPool::Pending() const {
  MutexLock lock(mutex_);
  return queue_.size() + running_;
}

void WorkerPool::RunThread() {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  while (true) {
    Work work;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && queue_.empty()) wake_.Wait(mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      ++running_;
    }
    work();
    work = nullptr;
    MutexLock lock(mutex_);
    --running_;
  }
}

}  // namespace kvartal
