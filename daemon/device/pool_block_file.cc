#include "daemon/device/pool_block_file.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::device {

PoolBlockFile::PoolBlockFile(DiskFile file, const BlockFileOptions& options, Executor* executor)
    : file_(std::move(file)),
      queue_max_(options.queue_max == 0 ? kDiskQueueMax : options.queue_max),
      deadline_ns_((options.deadline_ms == 0 ? kIoDeadlineMs : options.deadline_ms) * kNsPerMs),
      executor_(executor),
      pending_(std::make_shared<size_t>(0)),
      pool_("disk", options.depth, queue_max_) {}

PoolBlockFile::~PoolBlockFile() = default;

bool PoolBlockFile::Submit(BlockIo io) {
  file_.CheckShape(io);
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

size_t PoolBlockFile::Overdue() const {
  const int64_t late_ns = clock_.MonotonicNs() - deadline_ns_;
  if (oldest_ns_.load(std::memory_order_relaxed) > late_ns) return 0;  // asked for every block that is looked up
  MutexLock lock(mutex_);
  const auto in_time = std::find_if(started_ns_.begin(), started_ns_.end(),
                                    [late_ns](int64_t started_ns) { return started_ns > late_ns; });
  return static_cast<size_t>(std::distance(started_ns_.begin(), in_time));
}

absl::Status PoolBlockFile::Perform(BlockIo* io) {
  if (io->before != nullptr) KV_RETURN_IF_ERROR(io->before(*io));
  KV_RETURN_IF_ERROR(TransferInTime(*io));
  return io->after == nullptr ? absl::OkStatus() : io->after(*io);
}

absl::Status PoolBlockFile::TransferInTime(const BlockIo& io) {
  std::list<int64_t>::iterator started;
  {
    MutexLock lock(mutex_);
    started = started_ns_.insert(started_ns_.end(), clock_.MonotonicNs());
    oldest_ns_.store(started_ns_.front(), std::memory_order_relaxed);
  }
  absl::Status status = file_.Transfer(io);
  MutexLock lock(mutex_);
  started_ns_.erase(started);
  oldest_ns_.store(started_ns_.empty() ? INT64_MAX : started_ns_.front(), std::memory_order_relaxed);
  return status;
}

}  // namespace kvartal::device
