// Memory of the daemon's own between slots that clients map and the disk: for a block that is encrypted on its way out,
// and for one that is not known yet to be the slot's on its way in. A part of it is kept for the next. Thread-safe.
// Invariant: what is taken has one owner until it is given back; kept are kBounceSpareBytes at most.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/base/mapping.h"
#include "daemon/base/mutex.h"

namespace kvartal::tier {

class BounceBuffers {
 public:
  // At least that long.
  Mapping Take(uint64_t bytes);
  // Nobody's block is in it in the clear any more.
  void Give(Mapping buffer);

 private:
  Mutex mutex_;
  std::vector<Mapping> spare_ ABSL_GUARDED_BY(mutex_);
  uint64_t spare_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvartal::tier
