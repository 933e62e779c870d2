// Ends the process at a date, whatever its threads wait for then: a disk that does not answer lets go of nobody who
// asked it for something, and nobody who did can be joined. What is durable is so.
// Thread-safe; its thread is there from the start, since at the end there may be none to be had.
// Invariant: what is left behind has been named in the log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"

namespace kvartal::process {

// At once, and successfully: whoever asked for the end has it. `what` has not ended.
[[noreturn]] void EndWithout(const std::string& what);

class ExitDeadline {
 public:
  ExitDeadline();
  // In time.
  ~ExitDeadline();
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;

  void EndWithin(int64_t ms);
  // What the process waits for from now on.
  void NowAwaits(std::string what);

 private:
  void RunThread();

  const SystemClock clock_;
  Mutex mutex_;
  Condition wake_;
  std::optional<int64_t> end_by_ns_ ABSL_GUARDED_BY(mutex_);
  std::string awaited_ ABSL_GUARDED_BY(mutex_);
  bool in_time_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses everything above
};

}  // namespace kvartal::process
