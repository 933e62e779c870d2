#include "tests/support/fake_cuda/context.h"

#include <utility>

#include "tests/support/fake_cuda/fake_driver.h"

namespace kvartal::fake_cuda {

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

uint64_t Stream::Add(Work work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
  return ++added_;
}

uint64_t Stream::Last() const {
  const std::lock_guard lock(mutex_);
  return added_;
}

bool Stream::Passed(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

void Stream::WaitFor(uint64_t number) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
}

void Stream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const UniqueFd passed = Injected().PassGate();
    // Nothing runs in a context that has failed.
    if (context_->state() == CUDA_SUCCESS) {
      if (const CUresult result = work(); result != CUDA_SUCCESS) context_->Fail(result);
    }
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace kvartal::fake_cuda
