#include "daemon/process/exit_deadline.h"

#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "daemon/base/log.h"

namespace kvartal::process {

void EndWithout(const std::string& what) {
  Log(LogLevel::kWarning, "node", "going down without waiting any longer for ", what);
  std::_Exit(EXIT_SUCCESS);
}

ExitDeadline::ExitDeadline() : thread_([this] { RunThread(); }) {}

ExitDeadline::~ExitDeadline() {
  {
    MutexLock lock(mutex_);
    in_time_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void ExitDeadline::EndWithin(int64_t ms) {
  {
    MutexLock lock(mutex_);
    end_by_ns_ = clock_.MonotonicNs() + ms * kNsPerMs;
  }
  wake_.NotifyAll();
}

void ExitDeadline::NowAwaits(std::string what) {
  MutexLock lock(mutex_);
  awaited_ = std::move(what);
}

void ExitDeadline::RunThread() {
  pthread_setname_np(pthread_self(), "exit-deadline");
  MutexLock lock(mutex_);
  while (!in_time_) {
    if (!end_by_ns_.has_value()) {
      wake_.Wait(mutex_);
    } else if (const int64_t left_ns = *end_by_ns_ - clock_.MonotonicNs(); left_ns > 0) {
      wake_.WaitFor(mutex_, std::chrono::nanoseconds(left_ns));
    } else {
      EndWithout(awaited_);
    }
  }
}

}  // namespace kvartal::process
