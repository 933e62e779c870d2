// The real disk without io_uring: a pool of threads with preadv and pwritev, as many as the device works on at once.
// Confined to the engine loop; transfers and their hooks run on the pool's threads.
// Invariant: at most `queue_max` transfers are under way (their `done` has not run yet).
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>

#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/base/worker_pool.h"
#include "daemon/device/block_file.h"
#include "daemon/device/disk_file.h"

namespace kvartal::device {

class PoolBlockFile : public BlockFile {
 public:
  PoolBlockFile(DiskFile file, const BlockFileOptions& options, Executor* executor);
  // Every accepted transfer is finished first; its `done` is posted.
  ~PoolBlockFile() override;

  uint64_t size_bytes() const override { return file_.size_bytes(); }
  bool direct_io() const override { return file_.direct_io(); }
  bool Submit(BlockIo io) override;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override {
    return file_.ReadNow(offset, data, bytes);
  }
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override {
    return file_.WriteNow(offset, data, bytes);
  }
  absl::Status Sync() override { return file_.Sync(); }
  size_t Pending() const override { return *pending_; }
  size_t Overdue() const override;

 private:
  absl::Status Perform(BlockIo* io);
  absl::Status TransferInTime(const BlockIo& io);

  const DiskFile file_;
  const size_t queue_max_;
  const int64_t deadline_ns_;
  Executor* const executor_;
  const SystemClock clock_;
  const std::shared_ptr<size_t> pending_;  // confined to the loop: callbacks may outlive this object
  mutable Mutex mutex_;
  std::atomic<int64_t> oldest_ns_{INT64_MAX};              // the first of these
  std::list<int64_t> started_ns_ ABSL_GUARDED_BY(mutex_);  // of what is with the device, oldest first
  WorkerPool pool_;                                        // last: its threads use everything above
};

}  // namespace kvartal::device
