#include "tools/trace_engine/byteless_file.h"

#include <cstring>
#include <utility>

#include "daemon/base/limits.h"

namespace kvartal::trace_engine {

BytelessFile::BytelessFile(uint64_t size_bytes, Executor* executor)
    : size_bytes_(size_bytes),
      executor_(executor),
      front_(kNvmeDataStartBytes),
      pending_(std::make_shared<size_t>(0)) {}

bool BytelessFile::Submit(device::BlockIo io) {
  if (*pending_ >= kDiskQueueMax) return false;
  ++*pending_;
  executor_->Post([pending = pending_, done = std::move(io.done)]() mutable {
    --*pending;
    done(absl::OkStatus());
  });
  return true;
}

absl::Status BytelessFile::ReadNow(uint64_t offset, void* data, size_t bytes) {
  if (offset + bytes > front_.size()) return absl::OutOfRangeError("only the front of a byteless file can be read");
  std::memcpy(data, front_.data() + offset, bytes);
  return absl::OkStatus();
}

absl::Status BytelessFile::WriteNow(uint64_t offset, const void* data, size_t bytes) {
  if (offset + bytes > front_.size()) return absl::OutOfRangeError("only the front of a byteless file can be written");
  std::memcpy(front_.data() + offset, data, bytes);
  return absl::OkStatus();
}

}  // namespace kvartal::trace_engine
