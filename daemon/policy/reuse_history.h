// What a tenant's past teaches those who decide on its blocks: how classes of them fare, and the blocks that left.
#pragma once

#include <array>

#include "daemon/block/tier_kind.h"
#include "daemon/policy/ghost_memory.h"
#include "daemon/policy/reuse_classes.h"

namespace kvartal::policy {

// How long a block of a tier is idle, on average, when it is evicted.
struct Residence {
  double seconds = 120;
};

struct ReuseHistory {
  ReuseClasses classes;
  GhostMemory ghosts;
  std::array<Residence, kTierCount> residence;
};

}  // namespace kvartal::policy
