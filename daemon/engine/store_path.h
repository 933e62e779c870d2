// Reserve, Commit, Abort: from keys to slots a client fills, and from filled slots to visible blocks.
// Confined to the engine loop.
// Invariants: a slot is charged before it is granted; nothing is visible before every shard is committed; a reservation
// belongs to one group and ends once; a block that is kept on NVMe and cannot be served is filled beside that copy,
// which stays whatever becomes of the fill.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "daemon/engine/engine_state.h"
#include "daemon/engine/movement.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class StorePath {
 public:
  StorePath(EngineState* state, Residency* residency, Space* space, Movement* movement)
      : state_(*state), residency_(*residency), space_(*space), movement_(*movement) {}

  void Reserve(const ReserveRequest& request, CacheEngine::ReserveDone done);
  CommitOutcome Commit(GroupId group, ReservationId reservation, uint32_t shard);
  bool Abort(GroupId group, ReservationId reservation, uint64_t done);
  size_t AbortGroup(GroupId group, uint64_t done);
  void EndRest(ReservationId reservation, uint64_t done);
  void Tick();

 private:
  class Operation;
  void EndFilling(ReservationId reservation);
  // So long somebody may be at a fill that is in the way.
  bool IsOverdue(uint32_t since_tick) const;
  // Ends fills that hold an extent which has to be emptied, or an older copy on NVMe, for longer than a lease would.
  void AbortOverdue();
  // Ends fills of which nobody has come for the shards that are left.
  void AbortHalfStored();
  void EndUnasked(ReservationId reservation);
  void GiveRested();
  void Give(ReservationId reservation);

  // Of an aborted fill whose writers may not know it yet: nobody's until then, and charged.
  struct RestingSlot {
    TenantId tenant;
    SlotId slot;
    uint64_t written = 0;  // bit i: shard i may be, by whoever has reserved it
  };
  absl::flat_hash_map<ReservationId, RestingSlot> resting_;
  std::deque<std::pair<uint32_t, ReservationId>> rested_at_tick_;  // in order; some have had an earlier end
  // Fills with a shard committed, and nobody at the others since that tick.
  absl::btree_set<std::pair<uint32_t, ReservationId>> half_stored_;
  EngineState& state_;
  Residency& residency_;
  Space& space_;
  Movement& movement_;
};

}  // namespace kvartal::engine
