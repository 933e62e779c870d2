#include "daemon/tier/bounce_buffers.h"

#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::tier {

Mapping BounceBuffers::Take(uint64_t bytes) {
  {
    MutexLock lock(mutex_);
    // Blocks of a node have one size or a few: what fits is at the end, or near.
    for (size_t i = spare_.size(); i-- > 0;) {
      if (spare_[i].size() < bytes) continue;
      std::swap(spare_[i], spare_.back());
      Mapping found = std::move(spare_.back());
      spare_.pop_back();
      spare_bytes_ -= found.size();
      return found;
    }
  }
  absl::StatusOr<Mapping> made = Mapping::Anonymous(bytes);
  KV_CHECK(made.ok());
  return *std::move(made);
}

void BounceBuffers::Give(Mapping buffer) {
  MutexLock lock(mutex_);
  if (buffer.data() == nullptr || spare_bytes_ + buffer.size() > kBounceSpareBytes) return;
  spare_bytes_ += buffer.size();
  spare_.push_back(std::move(buffer));
}

}  // namespace kvartal::tier
