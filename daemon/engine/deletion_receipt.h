// What was deleted by policy, for the audit log: one receipt a turn, tenant and reason, or one for a whole tenant.
// Plain value.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "daemon/block/tier_kind.h"
#include "daemon/policy/drop_reason.h"

namespace kvartal::engine {

struct DeletionReceipt {
  std::string tenant;                                       // its name
  policy::DropReason reason = policy::DropReason::kMaxAge;  // kMaxAge or kRemoved
  uint64_t blocks = 0;                                      // each once, in however many tiers it had copies
  std::array<uint64_t, kTierCount> tier_bytes{};            // of their slots, zeroed or punched
  uint64_t unerased_blocks = 0;        // gone from the cache, yet the device did not take the zeros for them
  int64_t oldest_first_commit_ms = 0;  // wall clock, of the blocks; 0: there was none
  int64_t wall_ms = 0;                 // when it was done
  // Begun before a restart: what it had counted in DRAM is in it, what was left there went with the process.
  bool resumed = false;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const uint64_t of_tier : tier_bytes) sum += of_tier;
    return sum;
  }
};

}  // namespace kvartal::engine
