// How long to wait before the next try. Confined to its owner; time is passed in, chance comes from a seed.
// Invariant: no two tries in a row are closer than the first step, whatever fails.
#pragma once

#include <cstdint>

namespace kvartal::kube {

// A small generator whose whole state is its seed.
class Jitter {
 public:
  explicit Jitter(uint64_t seed) : state_(seed) {}
  double Unit();                                 // [0, 1)
  int64_t Between(int64_t first, int64_t last);  // both may come

 private:
  uint64_t state_;
};

// Doubles from kWatchBackoffMinMs to kWatchBackoffMaxMs, each stretched by chance to up to twice its length; starts
// over when nothing failed for kWatchBackoffResetMs.
class Backoff {
 public:
  explicit Backoff(uint64_t seed) : jitter_(seed) {}
  int64_t NextMs(int64_t now_ms);

 private:
  Jitter jitter_;
  int64_t step_ms_ = 0;
  int64_t last_ms_ = 0;  // when the last wait ended
};

}  // namespace kvartal::kube
