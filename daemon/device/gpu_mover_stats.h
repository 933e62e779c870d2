// What one mover has done since the daemon started, over all its processes.
// A plain value.
#pragma once

#include <cstdint>

namespace kvartal::device {

struct GpuMoverStats {
  uint64_t restarts = 0;      // starts after the first
  uint64_t hangs = 0;         // processes killed because they, or their GPU, stood still
  uint64_t bytes_to_gpu = 0;  // copied
  uint64_t bytes_to_host = 0;
  uint64_t bytes_scrubbed = 0;
  uint64_t operations_failed = 0;  // accepted, and ended with an error
  uint64_t refused = 0;            // not accepted
};

}  // namespace kvartal::device
