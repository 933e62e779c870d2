// Blocks kept until a wall-clock time, against eviction and TTL (paid prompt caching). A pin keeps a block in one tier:
// on NVMe if the tenant's guarantee there has room for it, else in DRAM.
// Confined to the engine loop.
// Invariants: in each tier the pinned bytes of a tenant never exceed its guarantee there, headers included; a pin that
// cannot be kept is refused; the blocks before a pinned one are pinned as long. On NVMe the record tells of the pin, so
// that a restart keeps it; in DRAM it ends with the daemon. Only maxAge, a limit or a guarantee lowered below the pins,
// and the removal of the tenant, end one early.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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
  // Recovery: a pin its record tells of. False: over by now, no longer covered by the guarantee of NVMe, or its tenant
  // is being erased.
  bool Adopt(EntryId id, uint32_t until_wall_s);
  // A pin that was set while NVMe could not be used is kept there, and outlives the daemon, once the block lies there.
  void MoveToNvme(EntryId id);
  void End(EntryId id);
  void EndAll(TenantState& tenant);
  // What policy no longer covers: ends pins beyond the guarantee, and gives up copies of pinned blocks in a tier whose
  // limit nothing else would meet. At most `max_blocks`.
  void Yield(TenantState& tenant, uint32_t max_blocks);

 private:
  // Where a pin of the block would be within the guarantee; nullopt: nowhere.
  std::optional<TierKind> RoomFor(EntryId id) const;
  // `ids`: what the pin asks for, in order of their numbers.
  policy::Refusal WhyNot(EntryId id, uint32_t until_tick, const std::vector<EntryId>& ids) const;
  void Set(EntryId id, TierKind tier, uint32_t until_tick);
  // Its guarantee has gone: it is kept elsewhere, or ends.
  void Resettle(EntryId id, uint32_t until_tick);
  void YieldToGuarantee(TenantState& tenant, TierKind tier, uint32_t max_blocks);
  std::vector<EntryId> PinsByDepth(const TenantState& tenant, TierKind tier) const;
  void YieldToLimit(TenantState& tenant, TierKind tier, uint32_t max_blocks);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Movement& movement_;
};

}  // namespace kvartal::engine
