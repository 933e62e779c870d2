// What time does: TTL, pins that end, empty extents, limits that were lowered. A bounded amount of work a tick.
// Confined to the engine loop.
// Invariants: an expired copy is dropped when a lower one exists, else demoted where the policy says so, else deleted;
// a leased, pinned or moving block does not expire; a tick never looks at more than kTickWorkMax blocks of a tenant.
#pragma once

#include <cstdint>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class Expiry {
 public:
  Expiry(EngineState* state, Residency* residency, Space* space, Movement* movement)
      : state_(*state), residency_(*residency), space_(*space), movement_(*movement) {}

  void Tick();

 private:
  void EndPins(uint32_t now_tick);
  // maxAge, which no order of use can find: a few entries of the index a tick, round and round.
  void SweepOldAge(uint32_t now_tick);
  void ExpireTier(TenantState& tenant, TierKind tier, uint32_t now_tick);
  // False when the oldest block cannot be dealt with in this tick.
  bool ExpireOne(TenantState& tenant, EntryId id, TierKind tier, uint32_t now_tick);
  void GiveBackIdleExtents(TenantState& tenant);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Movement& movement_;
  uint32_t sweep_at_ = 0;
};

}  // namespace kvartal::engine
