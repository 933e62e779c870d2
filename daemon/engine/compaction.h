// Empties one NVMe segment at a time, so that slots of another size find room: a segment has one slot size, and free
// slots scattered over many are of no use to anybody else. Its blocks are copied into free slots of their size, which
// the others have (tier/nvme_segment.h); then the place they left is zeroed and free.
// Confined to the engine loop.
// Invariants: a block is in its old place until the record of the new one would survive kill -9, and its bytes are
// there until no record names that place; its tenant is charged for one of the two, the other is nobody's; what is left
// is zeroed, unless the process ends first (docs/THREAT_MODEL.md).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "daemon/engine/engine_state.h"
#include "daemon/engine/receipts.h"
#include "daemon/engine/residency.h"

namespace kvartal::engine {

class Compaction {
 public:
  Compaction(EngineState* state, Residency* residency, Receipts* receipts)
      : state_(*state), residency_(*residency), receipts_(*receipts) {}

  enum class Started : uint8_t {
    kUnderWay,       // for slots of that size or others: whoever wants room waits for its end
    kNothingToMove,  // no size has as many free slots as a segment
    kStuck,          // nothing left the last one: the device or the catalog does not do its work
  };
  Started Start(uint32_t slot_bytes);
  // Tries again what could not move, and gives up a segment that nothing leaves any more.
  void Tick();

 private:
  struct Move {
    EntryId id;
    TenantId tenant;
    SlotId from, to;
    uint64_t bytes = 0;  // of a slot with its header
    size_t disk = 0;     // that it leaves
    uint8_t access_period = 0;
  };
  struct Copied {
    Move move;
    tier::CatalogRecord record;  // of the new place
  };
  struct Vacancy {
    TenantId tenant;
    SlotId slot;
    uint64_t bytes = 0;
    size_t disk = 0;  // of the move
  };

  void StartMoves();
  bool MayMove(EntryId id) const;
  // False when there is no slot to move it to.
  bool StartMove(EntryId id);
  void OnCopied(const Move& move, const absl::StatusOr<tier::BlockHeader>& copied);
  void SyncCopied();
  void Record(const Copied& copied, bool synced);
  void OnRecorded(const Move& move, const absl::Status& status);
  // Zeroes the one of the two places that the block does not have, and frees it, once no record names it.
  void Vacate(const Move& move, SlotId slot);
  void SyncVacated();
  void ZeroSynced();
  void OnZeroed(const Vacancy& vacancy, const absl::Status& status);
  // Of a move that is over.
  void Free(const Vacancy& vacancy);

  EngineState& state_;
  Residency& residency_;
  Receipts& receipts_;
  std::vector<EntryId> left_;   // of the segment: to be moved; some may be gone by now
  std::vector<Copied> copied_;  // not safe from a power cut yet
  bool syncing_copied_ = false;
  std::deque<Vacancy> vacated_;  // their records may come back with a power loss
  std::deque<Vacancy> synced_;   // to be zeroed
  bool syncing_ = false;
  WritesByDisk moving_;         // by the disk that they leave
  uint32_t progress_tick_ = 0;  // when a block last left, or the segment was chosen
  uint32_t not_before_tick_ = 0;
};

}  // namespace kvartal::engine
