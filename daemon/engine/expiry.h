// What time does: TTL, maxAge, pins that end, empty extents, limits that were lowered. A bounded amount of work a turn.
// Confined to the engine loop.
// Invariants: an expired copy is dropped when a lower one exists, else demoted where the policy says so, else deleted;
// what is over age is erased, provably; a leased, held or moving block waits for its end; a turn takes
// kTimerWorkPerTurn at most, and what is left goes first in the next.
#pragma once

#include <cstdint>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/erasure.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/pins.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class Expiry {
 public:
  Expiry(EngineState* state, Residency* residency, Space* space, Movement* movement, Pins* pins, Erasure* erasure)
      : state_(*state),
        residency_(*residency),
        space_(*space),
        movement_(*movement),
        pins_(*pins),
        erasure_(*erasure) {}

  void Tick();
  // A turn of the timers: part of every tick, and more of them between ticks while they are behind.
  void RunTimers();

 private:
  // What it took, beyond having looked at it.
  uint32_t OnTimer(EntryId id, uint32_t now_tick);
  bool ExpireCopy(EntryId id, TierKind tier, uint32_t now_tick);
  bool DropDeadCopy(EntryId id);
  // The record on disk learns of a pin, and of use when its period of last access is over.
  bool RefreshRecord(EntryId id, uint32_t now_tick);
  void RefreshAgain(EntryId id, SlotId slot);
  void EraseOverAge(EntryId id, uint32_t now_tick);
  void LookAgain(EntryId id, uint32_t now_tick);
  // After other keys, or a policy that shortened a time or asks for encryption: every block of the index, a part a
  // tick.
  void RearmSome();
  void KeepTime(uint32_t now_tick);
  void GiveBackIdleExtents(TenantState& tenant);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Movement& movement_;
  Pins& pins_;
  Erasure& erasure_;
  uint32_t rearm_at_ = 0;
  uint32_t rearm_left_ = 0;  // entries to be looked at still
  uint32_t time_kept_tick_ = 0;
  uint64_t key_changes_ = 0;  // of the node, at the last look
};

}  // namespace kvartal::engine
