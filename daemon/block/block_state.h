// Life of a block: Reserved -> Filling -> Committed -> (Leased | Moving) -> Gone. One that is kept on NVMe, where it
// cannot be read now, may be stored anew beside that copy: it is Reserved once more, and Committed again even if that
// is aborted.
// Stored are kGone, kReserved, kFilling and kCommitted; leased and moving are read off the entry (leases, I/O under
// way).
#pragma once

#include <cstdint>

namespace kvartal {

enum class BlockState : uint8_t {
  kGone = 0,       // no copy anywhere; the entry may stay as a placeholder while it has children
  kReserved = 1,   // charged, waiting for memory; nobody can see it
  kFilling = 2,    // a group writes it; only that group can see it
  kCommitted = 3,  // visible
  kLeased = 4,     // visible, and some group holds it in place
  kMoving = 5,     // visible, and a copy is being written or read
};

constexpr const char* BlockStateName(BlockState state) {
  switch (state) {
    case BlockState::kGone:
      return "gone";
    case BlockState::kReserved:
      return "reserved";
    case BlockState::kFilling:
      return "filling";
    case BlockState::kCommitted:
      return "committed";
    case BlockState::kLeased:
      return "leased";
    case BlockState::kMoving:
      return "moving";
  }
  return "?";
}

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
      return to == BlockState::kLeased || to == BlockState::kMoving || to == BlockState::kReserved ||
             to == BlockState::kGone;
    case BlockState::kLeased:
    case BlockState::kMoving:
      return to == BlockState::kCommitted || to == BlockState::kLeased || to == BlockState::kMoving;
  }
  return false;
}

static_assert(!MayBecome(BlockState::kFilling, BlockState::kLeased), "nothing is visible before commit");
static_assert(!MayBecome(BlockState::kLeased, BlockState::kGone), "a leased block is never taken away");

}  // namespace kvartal
