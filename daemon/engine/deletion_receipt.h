// What was deleted by policy, for the audit log: one receipt a turn, tenant and reason, or one for a whole tenant.
// Plain value.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/policy/drop_reason.h"

namespace kvartal::engine {

struct DeletionReceipt {
  std::string tenant;                                       // its name
  policy::DropReason reason = policy::DropReason::kMaxAge;  // kMaxAge or kRemoved
  uint64_t blocks = 0;
  uint64_t bytes = 0;                  // of their slots in every tier, zeroed or punched
  uint64_t unerased_blocks = 0;        // gone from the cache, yet the device did not take the zeros for them
  int64_t oldest_first_commit_ms = 0;  // wall clock, of the blocks; 0: there was none
  int64_t wall_ms = 0;                 // when it was done
};

}  // namespace kvartal::engine
