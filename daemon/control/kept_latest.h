// A kept file that is written beside the loop: one writing at a time, of the newest there is when its turn comes, so
// that a disk that hangs holds one and not a queue of them.
// Thread-safe: given on the loop, written on the worker, which it outlives.
// Invariant: once the worker has nothing left to do, the disk has what was given last, or the log says why not; also
// when whoever gave it is not there any more.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "daemon/base/mutex.h"
#include "daemon/base/worker_pool.h"
#include "daemon/control/kept_file.h"

namespace kvartal::control {

class KeptLatest {
 public:
  // `what`: for the log, in the plural.
  KeptLatest(std::string folder, const std::string& name, std::string what)
      : file_(std::move(folder), name), what_(std::move(what)) {}

  const KeptFile& file() const { return file_; }
  // The worker has room for one writing of each such file.
  void Keep(std::string bytes, WorkerPool* worker);

 private:
  void WriteAll();
  // None: nothing waits, and the next Keep begins to write.
  std::optional<std::string> Next();

  const KeptFile file_;
  const std::string what_;
  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::string> newest_ ABSL_GUARDED_BY(mutex_);  // that waits for its turn
};

}  // namespace kvartal::control
