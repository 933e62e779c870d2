// Deletion by policy of all that a tenant has: provable, unlike eviction. A tombstone first, then DRAM punched and
// NVMe zeroed. On request, or when a tenant that no policy names has not come back within its grace; and what a process
// before this one began and did not end. A removed tenant of whom nothing is left is forgotten.
// Confined to the engine loop. REQUIRES: the tenant's sessions were ended before (no leases, nothing filling).
// Invariants: reports success only after every copy was erased and the tombstone is on disk; a tenant that is in the
// policy is not shut out for as long as a disk hangs.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/erasure.h"
#include "daemon/engine/pins.h"
#include "daemon/engine/receipts.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class Removal {
 public:
  Removal(EngineState* state, Residency* residency, Space* space, Pins* pins, Erasure* erasure, Receipts* receipts)
      : state_(*state),
        residency_(*residency),
        space_(*space),
        pins_(*pins),
        erasure_(*erasure),
        receipts_(*receipts) {}

  void Start(TenantState& tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done);
  // Goes on with what waited for transfers to end, begins with tenants whose grace is over, forgets who is gone.
  void Tick();

  // --- recovery
  // A removal that the process before this one did not end. What it owes is erased as a tenant of its own, whatever the
  // owner has now: Owing says which blocks go to it. nullptr: there are too many tenants.
  TenantState* Resume(const tier::ErasureRecord& record);
  // nullptr: nothing is owed for a block with this header, or as above. `condemned`: a tombstone covers it, so it is
  // owed, be its removal known or not.
  TenantState* Owing(const tier::BlockHeader& header, bool condemned);
  const std::vector<TenantId>& owed() const { return owed_; }
  // Every block that was found has been offered.
  void EndResume() { owed_.clear(); }

 private:
  void StartRemoved(TenantState& tenant);
  void PutTombstone(TenantState& tenant);
  void Continue(TenantState& tenant);
  // The disk does not let it go on: what it has to erase is a past tenant's from now on, and who asked is told so.
  void StandAside(TenantState& tenant);
  void FlushZeros(TenantState& tenant);
  void Finish(TenantState& tenant);
  void ForgetGone();
  void Note(TenantState& tenant, const char* what, const absl::Status& status);
  // A block that may go now, leaves first. None when there is none, or all of them are in use.
  EntryId NextBlock(TenantState& tenant, TierKind tier, tier::DiskSet disks = tier::kAllDisks) const;
  bool EraseOneFromNvme(TenantState& tenant);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Pins& pins_;
  Erasure& erasure_;
  Receipts& receipts_;
  std::vector<TenantId> owed_;  // resumed, while recovery lasts
};

}  // namespace kvartal::engine
