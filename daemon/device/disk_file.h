// The open and locked data file of a disk, and the transfers on it that block: what the pool's threads do, and what
// start-up does on the calling thread. Immutable; any thread. Invariants: a transfer that moved less than asked is
// never OK; the file stays locked for as long as this object lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "daemon/base/limits.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/block_file.h"

namespace kvartal::device {

class DiskFile {
 public:
  DiskFile(UniqueFd fd, std::string path, uint64_t size_bytes);

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  bool direct_io() const;

  // Ends the process when `io` is not what BlockFile::Submit takes: a write past the end would grow the file, beside
  // what was charged.
  void CheckShape(const BlockIo& io) const;
  absl::Status Transfer(const BlockIo& io) const;
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) const;
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) const;
  absl::Status Sync() const;

  // What the kernel said of a transfer, in words: an errno at `offset`, or an end after `moved` bytes.
  absl::Status ErrorOf(BlockIo::Op op, uint64_t offset, int error) const;
  absl::Status EndedShort(const BlockIo& io, uint64_t moved) const;

 private:
  absl::Status TransferNow(BlockIo::Op op, uint64_t offset, std::byte* data, size_t bytes) const;

  UniqueFd fd_;
  std::string path_;
  uint64_t size_bytes_;
};

// The memory of `io` from `moved` on, at most `room` bytes of it. Returns how many of `out` are set.
int SliceOf(const BlockIo& io, uint64_t moved, uint64_t room, iovec out[2]);

inline bool OnSlotBoundary(uint64_t value) { return value % kSlotAlignBytes == 0; }

}  // namespace kvartal::device
