#include "daemon/device/pool_block_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/device/block_file_setup.h"

namespace kvartal::device {
namespace {

bool Aligned(uint64_t value) { return value % kSlotAlignBytes == 0; }
bool Aligned(const void* address) { return Aligned(reinterpret_cast<uintptr_t>(address)); }

uint64_t TotalBytes(const BlockIo& io) {
  uint64_t total = 0;
  for (int i = 0; i < io.part_count; ++i) total += io.parts[i].iov_len;
  return total;
}

// The next at most kIoPartBytes of `io`, `moved` bytes in. Returns how many of `out` are set.
int NextParts(const BlockIo& io, uint64_t moved, iovec out[2]) {
  int count = 0;
  uint64_t room = kIoPartBytes;
  for (int i = 0; i < io.part_count && room > 0; ++i) {
    const uint64_t length = io.parts[i].iov_len;
    if (moved >= length) {
      moved -= length;
      continue;
    }
    const uint64_t now = std::min(room, length - moved);
    out[count++] = {static_cast<std::byte*>(io.parts[i].iov_base) + moved, now};
    room -= now;
    moved = 0;
  }
  return count;
}

absl::Status TransferError(const std::string& path, BlockIo::Op op, uint64_t offset, int error) {
  const std::string what = absl::StrCat(op == BlockIo::Op::kRead ? "reading " : "writing ", path, " at ", offset, ": ",
                                        std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(what);
  return absl::UnavailableError(what);
}

}  // namespace

PoolBlockFile::PoolBlockFile(UniqueFd fd, uint64_t size_bytes, const BlockFileOptions& options, Executor* executor)
    : path_(options.path),
      fd_(std::move(fd)),
      size_bytes_(size_bytes),
      queue_max_(options.queue_max == 0 ? kDiskQueueMax : options.queue_max),
      executor_(executor),
      pending_(std::make_shared<size_t>(0)),
      pool_("disk", options.threads, queue_max_) {}

PoolBlockFile::~PoolBlockFile() = default;

bool PoolBlockFile::direct_io() const { return (::fcntl(fd_.get(), F_GETFL) & O_DIRECT) != 0; }

bool PoolBlockFile::Submit(BlockIo io) {
  KV_CHECK(io.part_count >= 1 && io.part_count <= 2);
  // A write past the end would grow the file, beside what was charged.
  const uint64_t total = TotalBytes(io);
  KV_CHECK(io.offset <= size_bytes_ && total <= size_bytes_ - io.offset);
  KV_DCHECK(io.done != nullptr && Aligned(io.offset));
  for (int i = 0; i < io.part_count; ++i) {
    KV_DCHECK(io.parts[i].iov_len > 0 && Aligned(io.parts[i].iov_len) && Aligned(io.parts[i].iov_base));
  }
  if (*pending_ >= queue_max_) return false;
  ++*pending_;
  KV_CHECK(pool_.TrySubmit([this, job = std::move(io)]() mutable {
    absl::Status status = Perform(&job);
    executor_->Post([pending = pending_, done = std::move(job.done), result = std::move(status)]() mutable {
      --*pending;
      done(std::move(result));
    });
  }));
  return true;
}

absl::Status PoolBlockFile::Perform(BlockIo* io) const {
  const bool hooked = io->on_disk_thread != nullptr;
  if (io->op == BlockIo::Op::kWrite && hooked) KV_RETURN_IF_ERROR(io->on_disk_thread());
  KV_RETURN_IF_ERROR(Transfer(*io));
  if (io->op == BlockIo::Op::kRead && hooked) KV_RETURN_IF_ERROR(io->on_disk_thread());
  return absl::OkStatus();
}

absl::Status PoolBlockFile::Transfer(const BlockIo& io) const {
  const uint64_t total = TotalBytes(io);
  uint64_t moved = 0;
  while (moved < total) {
    iovec parts[2];
    const int count = NextParts(io, moved, parts);
    const auto offset = static_cast<off_t>(io.offset + moved);
    const ssize_t now = io.op == BlockIo::Op::kRead ? ::preadv(fd_.get(), parts, count, offset)
                                                    : ::pwritev(fd_.get(), parts, count, offset);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return TransferError(path_, io.op, io.offset + moved, errno);
    moved += static_cast<uint64_t>(now);
    // The rest of a page cannot be asked for alone under O_DIRECT, and no healthy disk stops inside one.
    if (now == 0 || !Aligned(moved)) {
      return absl::UnavailableError(absl::StrCat(path_, " ended a transfer of ", total, " bytes at ", io.offset,
                                                 " after ", moved, ": the file was cut short or the disk is failing"));
    }
  }
  return absl::OkStatus();
}

absl::Status PoolBlockFile::TransferNow(BlockIo::Op op, uint64_t offset, std::byte* data, size_t bytes) const {
  if (offset > size_bytes_ || bytes > size_bytes_ - offset) {
    return absl::OutOfRangeError(
        absl::StrCat(bytes, " bytes at ", offset, " are past the ", size_bytes_, " bytes of ", path_));
  }
  KV_CHECK(Aligned(offset) && Aligned(bytes));
  BlockIo io;
  io.op = op;
  io.offset = offset;
  io.parts[0] = {data, bytes};
  if (bytes == 0 || Aligned(data)) return Transfer(io);

  std::unique_ptr<std::byte, decltype(&std::free)> bounce(
      static_cast<std::byte*>(std::aligned_alloc(kSlotAlignBytes, bytes)), &std::free);
  KV_CHECK(bounce != nullptr);
  io.parts[0].iov_base = bounce.get();
  if (op == BlockIo::Op::kWrite) std::memcpy(bounce.get(), data, bytes);
  KV_RETURN_IF_ERROR(Transfer(io));
  if (op == BlockIo::Op::kRead) std::memcpy(data, bounce.get(), bytes);
  return absl::OkStatus();
}

absl::Status PoolBlockFile::ReadNow(uint64_t offset, void* data, size_t bytes) {
  return TransferNow(BlockIo::Op::kRead, offset, static_cast<std::byte*>(data), bytes);
}

absl::Status PoolBlockFile::WriteNow(uint64_t offset, const void* data, size_t bytes) {
  return TransferNow(BlockIo::Op::kWrite, offset, const_cast<std::byte*>(static_cast<const std::byte*>(data)), bytes);
}

absl::Status PoolBlockFile::Sync() {
  if (::fdatasync(fd_.get()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("syncing ", path_, ": ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<BlockFile>> OpenPoolBlockFile(const BlockFileOptions& options, Executor* executor) {
  KV_ASSIGN_OR_RETURN(OpenedBlockFile opened, SetUpBlockFile(options));
  return std::make_unique<PoolBlockFile>(std::move(opened.fd), opened.size_bytes, options, executor);
}

}  // namespace kvartal::device
