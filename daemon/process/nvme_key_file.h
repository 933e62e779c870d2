// The file of the node's keys for blocks on NVMe: read at the start, and again when it has changed.
// Confined to the engine loop; the file is read on a thread of its own.
// Invariant: the ring has the keys of the last file that was good as a whole; one that is bad or gone takes none away.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/base/worker_pool.h"
#include "daemon/cipher/key_ring.h"

namespace kvartal::process {

class NvmeKeyFile {
 public:
  // Reads the file before it returns, so that what is read back from the disk finds keys. `loop` outlives this object's
  // thread.
  NvmeKeyFile(std::string path, EventLoop* loop);

  const std::shared_ptr<cipher::KeyRing>& ring() const { return ring_; }
  // Why the file's content is not what is used; "" when it is.
  const std::string& last_error() const { return last_error_; }
  bool reading() const { return reader_->Pending() > 0; }

 private:
  using Keys = absl::StatusOr<std::shared_ptr<const cipher::NodeKeys>>;
  void Poll();
  void Take(const Keys& keys);

  const std::string path_;
  EventLoop* const loop_;
  const std::shared_ptr<cipher::KeyRing> ring_ = std::make_shared<cipher::KeyRing>();
  std::string last_error_;
  std::unique_ptr<WorkerPool> reader_;  // last: its thread uses what is above
};

}  // namespace kvartal::process
