// The real disk: one preallocated file or raw device, read and written by a pool of threads with preadv and pwritev.
// Confined to the engine loop; transfers and their on_disk_thread callbacks run on the pool's threads.
// Invariants: at most `queue_max` transfers are under way (their `done` has not run yet); a transfer that moved less
// than asked is never OK; the file stays locked for as long as this object lives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/base/unique_fd.h"
#include "daemon/base/worker_pool.h"
#include "daemon/device/block_file.h"

namespace kvartal::device {

class PoolBlockFile : public BlockFile {
 public:
  // `fd` is open, locked and holds `size_bytes`.
  PoolBlockFile(UniqueFd fd, uint64_t size_bytes, const BlockFileOptions& options, Executor* executor);
  // Every accepted transfer is finished first; its `done` is posted.
  ~PoolBlockFile() override;

  uint64_t size_bytes() const override { return size_bytes_; }
  bool direct_io() const override;
  bool Submit(BlockIo io) override;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override;
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override;
  absl::Status Sync() override;
  size_t Pending() const override { return *pending_; }

 private:
  absl::Status Perform(BlockIo* io) const;
  absl::Status Transfer(const BlockIo& io) const;
  absl::Status TransferNow(BlockIo::Op op, uint64_t offset, std::byte* data, size_t bytes) const;

  const std::string path_;
  const UniqueFd fd_;
  const uint64_t size_bytes_;
  const size_t queue_max_;
  Executor* const executor_;
  const std::shared_ptr<size_t> pending_;  // confined to the loop: callbacks may outlive this object
  WorkerPool pool_;                        // last: its threads use everything above
};

}  // namespace kvartal::device
