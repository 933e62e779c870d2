#include "daemon/attach/memory_grant.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace kvartal::attach {

void FillRanges(std::span<const engine::DomainMemory::Range> ranges, v1::MemoryGrant* grant) {
  KV_CHECK(ranges.size() <= kRangesPerGrantMax);
  for (const engine::DomainMemory::Range& range : ranges) {
    grant->add_offsets(range.offset);
    grant->add_bytes(range.bytes);
  }
}

size_t FillFirstGrant(const engine::DomainMemory& memory, v1::MemoryGrant* grant, OutgoingFds* fds) {
  KV_CHECK(memory.arena_fd >= 0 && memory.generation_fd >= 0);
  const size_t count = std::min(kRangesPerGrantMax, memory.granted.size());
  grant->set_arena_bytes(memory.arena_bytes);
  grant->set_has_fds(true);
  FillRanges(std::span(memory.granted).first(count), grant);
  *fds = {2, {memory.arena_fd, memory.generation_fd}};
  return count;
}

}  // namespace kvartal::attach
