// Blocks kept until a wall-clock time, against eviction and TTL (paid prompt caching).
// Confined to the engine loop.
// Invariants: the pinned bytes of a tenant never exceed its guarantees in DRAM + NVMe; a pin that cannot be kept is
// refused; where the tenant has NVMe a pinned block is written there and its record tells of the pin, so that a restart
// keeps it. Only maxAge, a limit or a guarantee lowered below the pins, and the removal of the tenant, end one early.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class Pins {
 public:
  Pins(EngineState* state, Residency* residency, Space* space, Movement* movement)
      : state_(*state), residency_(*residency), space_(*space), movement_(*movement) {}

  policy::Refusal Pin(std::span<const Hold> blocks, int64_t until_wall_ms);
  // Recovery: a pin its record tells of. False: over by now, no longer covered by the guarantee, or its tenant is being
  // erased.
  bool Adopt(EntryId id, uint32_t until_wall_s);
  void End(EntryId id);
  void EndAll(TenantState& tenant);
  // What policy no longer covers: ends pins beyond the guarantee, and gives up copies of pinned blocks in a tier whose
  // limit nothing else would meet. At most `max_blocks`.
  void Yield(TenantState& tenant, uint32_t max_blocks);
  // A block that is pinned and not on NVMe, where its tenant may use that: begins to write it.
  void MakeDurable(EntryId id);

 private:
  static uint64_t GuaranteeBytes(const TenantState& tenant);
  policy::Refusal WhyNot(EntryId id, uint32_t until_tick) const;
  void Set(EntryId id, uint32_t until_tick);
  void YieldToLimit(TenantState& tenant, TierKind tier, uint32_t max_blocks);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Movement& movement_;
};

}  // namespace kvartal::engine
