#include "daemon/device/uring_block_file.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::device {

absl::StatusOr<std::unique_ptr<UringBlockFile>> UringBlockFile::Open(DiskFile* file, const BlockFileOptions& options,
                                                                     Executor* executor) {
  if (!file->direct_io()) {
    return absl::UnimplementedError("io_uring gains nothing where the file system takes no O_DIRECT");
  }
  KV_RETURN_IF_ERROR(ProbeUring(file->fd()));
  std::unique_ptr<UringBlockFile> opened(new UringBlockFile);
  opened->queue_max_ = options.queue_max == 0 ? kDiskQueueMax : options.queue_max;
  const auto depth = static_cast<size_t>(options.depth);
  const size_t rings = (depth + kTransfersPerRing - 1) / kTransfersPerRing;
  auto held = std::make_unique<DiskFile>(std::move(*file));
  const int64_t deadline_ms = options.deadline_ms == 0 ? kIoDeadlineMs : options.deadline_ms;
  for (size_t i = 0; i < rings; ++i) {
    const size_t share = depth / rings + (i < depth % rings ? 1 : 0);
    auto ring = DiskRing::Start(held.get(), share, deadline_ms, executor);
    if (!ring.ok()) {
      opened->rings_.clear();
      *file = std::move(*held);
      return ring.status();
    }
    opened->rings_.push_back(*std::move(ring));
  }
  opened->pending_->of_ring.resize(rings);
  opened->file_ = std::move(held);
  return opened;
}

bool UringBlockFile::Submit(BlockIo io) {
  file_->CheckShape(io);
  if (pending_->total >= queue_max_) return false;
  std::vector<size_t>& of_ring = pending_->of_ring;
  const auto ring = static_cast<size_t>(std::min_element(of_ring.begin(), of_ring.end()) - of_ring.begin());
  ++pending_->total;
  ++of_ring[ring];
  io.done = [pending = pending_, ring, done = std::move(io.done)](absl::Status status) mutable {
    --pending->total;
    --pending->of_ring[ring];
    done(std::move(status));
  };
  rings_[ring]->Submit(std::move(io));
  return true;
}

size_t UringBlockFile::Overdue() const {
  size_t overdue = 0;
  for (const std::unique_ptr<DiskRing>& ring : rings_) overdue += ring->overdue();
  return overdue;
}

}  // namespace kvartal::device
