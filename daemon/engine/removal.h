// Deletion by policy of all that a tenant has: provable, unlike eviction. A tombstone first, then DRAM punched and
// NVMe zeroed.
// Confined to the engine loop. REQUIRES: the tenant's sessions were ended before (no leases, nothing filling).
// Invariant: reports success only after every copy was erased and the tombstone is on disk.
#pragma once

#include <cstdint>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class Removal {
 public:
  Removal(EngineState* state, Residency* residency, Space* space)
      : state_(*state), residency_(*residency), space_(*space) {}

  void Start(TenantState& tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done);
  // Goes on with what waited for transfers to end.
  void Tick();

 private:
  void Continue(TenantState& tenant);
  void Note(TenantState& tenant, const char* what, const absl::Status& status);
  // A block that may go now, leaves first. None when there is none, or all of them are in use.
  EntryId NextBlock(TenantState& tenant, TierKind tier) const;
  bool EraseOneFromNvme(TenantState& tenant);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
};

}  // namespace kvartal::engine
