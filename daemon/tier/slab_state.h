// Life of a slab once its domain has it: Active -> Detaching -> (Zombie ->) Quiesced -> Scrubbed -> Free. Memory that a
// process has mapped cannot be taken from it: it is asked for, and no longer charged when every process that had it is
// proven to have none of it. docs/ARCHITECTURE.md has the table with what each state means for a tenant.
#pragma once

#include <cstdint>

#include "daemon/base/check.h"

namespace kvartal::tier {

enum class SlabState : uint8_t {
  kActive = 0,     // slots are taken and given; peers receive it
  kDetaching = 1,  // empty, and asked back; its peers have until the deadline
  kZombie = 2,     // a peer is deaf, or gone without proof: charged, of no use, told
  kQuiesced = 3,   // no peer has it: Shrink takes it from the domain and has it zeroed
  kScrubbed = 4,   // all zeros
  kFree = 5,       // released to the driver; the object ends here
};

enum class SlabEvent : uint8_t {
  kAskedBack = 0,
  kDeadline = 1,  // of asking
  kLetGo = 2,     // the last peer detached, or its process ended
  kZeroed = 3,
  kReleased = 4,
};

// The one table of legal moves; any other ends the process.
constexpr SlabState NextSlabState(SlabState state, SlabEvent event) {
  const bool asked = state == SlabState::kDetaching || state == SlabState::kZombie;
  switch (event) {
    case SlabEvent::kAskedBack:
      KV_CHECK(state == SlabState::kActive);
      return SlabState::kDetaching;
    case SlabEvent::kDeadline:
      KV_CHECK(state == SlabState::kDetaching);
      return SlabState::kZombie;
    case SlabEvent::kLetGo:
      KV_CHECK(asked);
      return SlabState::kQuiesced;
    case SlabEvent::kZeroed:
      KV_CHECK(state == SlabState::kQuiesced);
      return SlabState::kScrubbed;
    case SlabEvent::kReleased:
      KV_CHECK(state == SlabState::kScrubbed);
      return SlabState::kFree;
  }
  return state;
}

}  // namespace kvartal::tier
