// Deletion by policy of all that a tenant has: provable, unlike eviction. A tombstone first, then DRAM punched and
// NVMe zeroed. On request, or when a tenant that no policy names has not come back within its grace.
// Confined to the engine loop. REQUIRES: the tenant's sessions were ended before (no leases, nothing filling).
// Invariant: reports success only after every copy was erased and the tombstone is on disk.
#pragma once

#include <cstdint>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/erasure.h"
#include "daemon/engine/pins.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class Removal {
 public:
  Removal(EngineState* state, Residency* residency, Space* space, Pins* pins, Erasure* erasure)
      : state_(*state), residency_(*residency), space_(*space), pins_(*pins), erasure_(*erasure) {}

  void Start(TenantState& tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done);
  // Goes on with what waited for transfers to end, and begins with tenants whose grace is over.
  void Tick();

 private:
  void StartRemoved(TenantState& tenant);
  void Continue(TenantState& tenant);
  void Finish(TenantState& tenant);
  void Note(TenantState& tenant, const char* what, const absl::Status& status);
  void NoteBlock(TenantState& tenant, EntryId id);
  // A block that may go now, leaves first. None when there is none, or all of them are in use.
  EntryId NextBlock(TenantState& tenant, TierKind tier) const;
  bool EraseOneFromNvme(TenantState& tenant);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Pins& pins_;
  Erasure& erasure_;
};

}  // namespace kvartal::engine
