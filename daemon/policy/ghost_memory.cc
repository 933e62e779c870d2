#include "daemon/policy/ghost_memory.h"

#include <algorithm>
#include <utility>

#include "daemon/base/limits.h"

namespace kvartal::policy {

void GhostMemory::Remember(uint64_t fingerprint, const PastUse& past, uint64_t cached, uint64_t tenants) {
  const uint64_t wanted = std::clamp<uint64_t>(kGhostsPerBlock * cached, kGhostsMin, kGhostsMax);
  const uint64_t generation_max = std::min(wanted, kGhostsNodeMax / std::max<uint64_t>(tenants, 1));
  if (young_.size() >= generation_max) {
    old_ = std::exchange(young_, Generation());
    young_.reserve(generation_max);  // so that it is not moved, all at once, while it fills
  }
  young_[fingerprint] = past;
}

PastUse GhostMemory::Recall(uint64_t fingerprint) {
  for (Generation* generation : {&young_, &old_}) {
    auto found = generation->extract(fingerprint);
    if (!found.empty()) return found.mapped();
  }
  return {};
}

}  // namespace kvartal::policy
