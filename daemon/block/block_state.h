// Life of a block: Reserved -> Filling -> Committed -> (Leased | Moving) -> Gone. One that is kept on NVMe, where it
// cannot be read now, may be stored anew beside that copy: it is Reserved once more, and Committed again even if that
// is aborted.
// Leased and moving are no states of their own: both may be true at once, and are read off the entry (its leases, its
// I/O under way), which Residency does before it lets a copy go.
#pragma once

#include <cstdint>

namespace kvartal {

enum class BlockState : uint8_t {
  kGone = 0,       // no copy anywhere; the entry may stay as a placeholder while it has children
  kReserved = 1,   // waits for memory, which is charged when it gets it; nobody can see it
  kFilling = 2,    // a group writes it; only that group can see it
  kCommitted = 3,  // visible
};

// The one table of legal moves.
constexpr bool MayBecome(BlockState from, BlockState to) {
  switch (from) {
    case BlockState::kGone:
      return to == BlockState::kReserved || to == BlockState::kCommitted;  // committed: recovery from NVMe
    case BlockState::kReserved:
      return to == BlockState::kFilling || to == BlockState::kCommitted || to == BlockState::kGone;
    case BlockState::kFilling:
      return to == BlockState::kCommitted || to == BlockState::kGone;
    case BlockState::kCommitted:
      return to == BlockState::kReserved || to == BlockState::kGone;
  }
  return false;
}

}  // namespace kvartal
