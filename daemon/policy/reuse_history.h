// What a tenant's orders by hit density learn from: how its classes of blocks fare, and the blocks that left.
#pragma once

#include "daemon/policy/ghost_memory.h"
#include "daemon/policy/reuse_classes.h"

namespace kvartal::policy {

struct ReuseHistory {
  ReuseClasses classes;
  GhostMemory ghosts;
};

}  // namespace kvartal::policy
