// The real disk: transfers through io_uring, with one disk thread for every kTransfersPerRing that the device works on
// at once. Plain O_DIRECT from and into the callers' memory.
// Confined to the engine loop; transfers and their hooks run on the disk threads.
// Invariant: at most `queue_max` transfers are under way (their `done` has not run yet).
#pragma once

#include <memory>
#include <vector>

#include "daemon/device/block_file.h"
#include "daemon/device/disk_file.h"
#include "daemon/device/disk_ring.h"

namespace kvartal::device {

class UringBlockFile : public BlockFile {
 public:
  // Unimplemented when there can be no rings; `file` is as it was then.
  static absl::StatusOr<std::unique_ptr<UringBlockFile>> Open(DiskFile* file, const BlockFileOptions& options,
                                                              Executor* executor);

  uint64_t size_bytes() const override { return file_->size_bytes(); }
  bool direct_io() const override { return file_->direct_io(); }
  bool Submit(BlockIo io) override;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override {
    return file_->ReadNow(offset, data, bytes);
  }
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override {
    return file_->WriteNow(offset, data, bytes);
  }
  absl::Status Sync() override { return file_->Sync(); }
  size_t Pending() const override { return pending_->total; }
  size_t Overdue() const override;

 private:
  // Confined to the loop: callbacks may outlive this object.
  struct Counts {
    size_t total = 0;
    std::vector<size_t> of_ring;
  };
  UringBlockFile() = default;

  std::unique_ptr<const DiskFile> file_;
  size_t queue_max_ = 0;
  const std::shared_ptr<Counts> pending_ = std::make_shared<Counts>();
  std::vector<std::unique_ptr<DiskRing>> rings_;  // last: they use the file
};

}  // namespace kvartal::device
