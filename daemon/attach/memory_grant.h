// MemoryGrant frames: what a client may map, and which ranges of it are worth populating.
// Pure functions.
// Invariant: a frame carries at most kRangesPerGrantMax ranges; only the first of a session has the fds beside it.
#pragma once

#include <cstddef>
#include <span>

#include "daemon/attach/attach.pb.h"
#include "daemon/attach/outbox.h"
#include "daemon/engine/cache_engine.h"

namespace kvartal::attach {

inline constexpr size_t kRangesPerGrantMax = 1024;  // 16 KiB of ranges: far below a frame

// Ranges without fds.
void FillRanges(std::span<const engine::DomainMemory::Range> ranges, v1::MemoryGrant* grant);
// The first grant of a session: as many ranges as fit, and both fds to send beside it. Returns how many ranges it
// tells.
size_t FillFirstGrant(const engine::DomainMemory& memory, v1::MemoryGrant* grant, OutgoingFds* fds);

}  // namespace kvartal::attach
