// Brings what a lookup found into memory, window by window, and compares every byte with what its key says.
// Stateless.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/base/status.h"
#include "daemon/block/block_key.h"
#include "tools/kvartal-bench/bench_client.h"

namespace kvartal::bench {

struct Compared {
  uint32_t blocks = 0;
  uint32_t from_nvme = 0;  // of those: were on NVMe when they were looked up
  uint64_t bytes = 0;
  uint64_t wrong_bytes = 0;
  uint32_t lost = 0;     // found and then gone: a miss for the caller
  uint32_t refused = 0;  // found on NVMe and no room in memory now
};

// Consumes `found` of a lookup of `chain`. A refused or lost load is an outcome, not an error.
absl::StatusOr<Compared> LoadAndCompare(BenchClient* client, std::span<const BlockKey> chain, Found found);

}  // namespace kvartal::bench
