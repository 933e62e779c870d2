// A kept file that is written beside the loop: one writing at a time, of the newest there is when its turn comes, so
// that a disk that hangs holds one and not a queue of them.
// Confined to the loop; the file is written on the worker.
// Invariant: once nothing is being written, the disk has what was given last, or the log says why not.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "daemon/base/event_loop.h"
#include "daemon/base/worker_pool.h"
#include "daemon/control/kept_file.h"

namespace kvartal::control {

class KeptLatest {
 public:
  // `what`: for the log, in the plural.
  KeptLatest(std::string folder, const std::string& name, std::string what)
      : file_(std::move(folder), name), what_(std::move(what)) {}

  const KeptFile& file() const { return file_; }
  // `alive` false: nobody is there any more to hear of its end. The worker has room for one writing of each such file.
  void Keep(std::string bytes, EventLoop* loop, WorkerPool* worker, const std::shared_ptr<bool>& alive);

 private:
  const KeptFile file_;
  const std::string what_;
  bool writing_ = false;
  bool waits_ = false;
  std::string newest_;  // that waits for its turn
};

}  // namespace kvartal::control
