#include "daemon/device/disk_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::device {
namespace {

bool Aligned(const void* address) { return OnSlotBoundary(reinterpret_cast<uintptr_t>(address)); }

}  // namespace

int SliceOf(const BlockIo& io, uint64_t moved, uint64_t room, iovec out[2]) {
  int count = 0;
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

DiskFile::DiskFile(UniqueFd fd, std::string path, uint64_t size_bytes)
    : fd_(std::move(fd)), path_(std::move(path)), size_bytes_(size_bytes) {}

bool DiskFile::direct_io() const { return (::fcntl(fd_.get(), F_GETFL) & O_DIRECT) != 0; }

void DiskFile::CheckShape(const BlockIo& io) const {
  KV_CHECK(io.part_count >= 1 && io.part_count <= 2);
  const uint64_t total = io.bytes();
  KV_CHECK(io.offset <= size_bytes_ && total <= size_bytes_ - io.offset);
  KV_DCHECK(io.done != nullptr && OnSlotBoundary(io.offset));
  for (int i = 0; i < io.part_count; ++i) {
    KV_DCHECK(io.parts[i].iov_len > 0 && OnSlotBoundary(io.parts[i].iov_len) && Aligned(io.parts[i].iov_base));
  }
}

absl::Status DiskFile::Transfer(const BlockIo& io) const {
  const uint64_t total = io.bytes();
  uint64_t moved = 0;
  while (moved < total) {
    iovec parts[2];
    const int count = SliceOf(io, moved, kIoPartBytes, parts);
    const auto offset = static_cast<off_t>(io.offset + moved);
    const ssize_t now = io.op == BlockIo::Op::kRead ? ::preadv(fd_.get(), parts, count, offset)
                                                    : ::pwritev(fd_.get(), parts, count, offset);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) return ErrorOf(io.op, io.offset + moved, errno);
    moved += static_cast<uint64_t>(now);
    // The rest of a page cannot be asked for alone under O_DIRECT, and no healthy disk stops inside one.
    if (now == 0 || !OnSlotBoundary(moved)) return EndedShort(io, moved);
  }
  return absl::OkStatus();
}

absl::Status DiskFile::TransferNow(BlockIo::Op op, uint64_t offset, std::byte* data, size_t bytes) const {
  if (offset > size_bytes_ || bytes > size_bytes_ - offset) {
    return absl::OutOfRangeError(
        absl::StrCat(bytes, " bytes at ", offset, " are past the ", size_bytes_, " bytes of ", path_));
  }
  KV_CHECK(OnSlotBoundary(offset) && OnSlotBoundary(bytes));
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

absl::Status DiskFile::ReadNow(uint64_t offset, void* data, size_t bytes) const {
  return TransferNow(BlockIo::Op::kRead, offset, static_cast<std::byte*>(data), bytes);
}

absl::Status DiskFile::WriteNow(uint64_t offset, const void* data, size_t bytes) const {
  return TransferNow(BlockIo::Op::kWrite, offset, const_cast<std::byte*>(static_cast<const std::byte*>(data)), bytes);
}

absl::Status DiskFile::Sync() const {
  if (::fdatasync(fd_.get()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("syncing ", path_, ": ", std::strerror(errno)));
}

absl::Status DiskFile::ErrorOf(BlockIo::Op op, uint64_t offset, int error) const {
  const std::string what = absl::StrCat(op == BlockIo::Op::kRead ? "reading " : "writing ", path_, " at ", offset, ": ",
                                        std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(what);
  return absl::UnavailableError(what);
}

absl::Status DiskFile::EndedShort(const BlockIo& io, uint64_t moved) const {
  return absl::UnavailableError(absl::StrCat(path_, " ended a transfer of ", io.bytes(), " bytes at ", io.offset,
                                             " after ", moved, ": the file was cut short or the disk is failing"));
}

}  // namespace kvartal::device
