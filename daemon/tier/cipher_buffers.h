// Memory for encrypted bytes on their way to the disk: taken by a disk thread, given back by the engine loop, a part of
// it kept for the next. A slot that clients map is never encrypted in place. Thread-safe.
// Invariant: what is taken has one owner until it is given back; kept are kCipherSpareBytes at most.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/base/mapping.h"
#include "daemon/base/mutex.h"

namespace kvartal::tier {

class CipherBuffers {
 public:
  // At least that long.
  Mapping Take(uint64_t bytes);
  void Give(Mapping buffer);

 private:
  Mutex mutex_;
  std::vector<Mapping> spare_ ABSL_GUARDED_BY(mutex_);
  uint64_t spare_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvartal::tier
