// The bounds of movers, on both sides of their socket, with their reasons. Beside the mover: hardly anything else is
// compiled anew when one changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::device {

inline constexpr size_t kMoverOperationsMax = 1024;  // under way at a mover; a full queue is a refusal
inline constexpr size_t kMoverMemoriesMax = 16'384;  // slabs, and as many arenas: a GPU in slabs of 16 MiB

// --- in the daemon
inline constexpr int64_t kMoverTickMs = 20;        // between two looks whether something under way is overdue
inline constexpr int64_t kMoverStartMs = 60'000;   // to its first word: a driver takes seconds where GPUs are many
inline constexpr int64_t kMoverCallMs = 30'000;    // for what comes without a deadline: a call of the driver, a scrub
inline constexpr int64_t kMoverBackoffMinMs = 50;  // before a process that ended is started again,
inline constexpr int64_t kMoverBackoffMaxMs = 10'000;  // doubled up to this while none lasts as long
inline constexpr size_t kMoverPacketsPerWakeMax = 64;  // of answers; then the rest of the loop has its turn

// --- in the mover
inline constexpr uint64_t kMoverChunkBytes = 8 * kMiB;  // of a copy at a time: a third of a millisecond on PCIe 4
inline constexpr uint64_t kMoverOnGpuBytes = 2 * kMoverChunkBytes;  // given to the GPU in a direction: the next chunk
                                                                    // is there when one ends, and demand is next
inline constexpr size_t kMoverOnGpuChunks = 64;                     // the same of small ones: an event each
inline constexpr uint32_t kMoverDemandRun = 9;  // chunks of demand in a row while background waits: a tenth is its
inline constexpr int64_t kMoverPollUs = 50;     // between two looks at a GPU that works: a part of what a chunk takes
inline constexpr size_t kMoverRequestsPerTurn = 64;  // then what the GPU has done has its turn
inline constexpr size_t kMoverAnswersPerPacket = 32;

static_assert(kMoverOnGpuBytes > kMoverChunkBytes);
static_assert(kMoverBackoffMinMs < kMoverBackoffMaxMs);

}  // namespace kvartal::device
