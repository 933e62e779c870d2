// Copies between tiers: DRAM -> NVMe (write-through at commit, demotion when the space is wanted) and NVMe -> DRAM
// (promotion).
// Confined to the engine loop; the transfers run on the disk threads.
// Invariants: data before metadata (a block is durable only after its catalog record is); while a copy moves,
// neither its source nor its destination can be freed; a block whose bytes fail verification loses that copy and is
// never served; one that could not be read keeps it, kReadErrorsPerBlockMax times at most.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/engine/engine_state.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/space.h"

namespace kvartal::engine {

class Movement {
 public:
  enum class WriteReason : uint8_t { kWriteThrough, kDemotion, kExpiry };
  // What a promotion came to. Lost: a miss for its readers, since the device failed, or the bytes are not the block's.
  enum class ReadOutcome : uint8_t { kDone, kLost };
  using ReadDone = absl::AnyInvocable<void(ReadOutcome)>;
  enum class Urgency : uint8_t { kDemand, kAhead };  // somebody waits for it; or will ask for it
  struct Reader {
    const void* who = nullptr;
    Urgency urgency = Urgency::kDemand;
    ReadDone done;
  };

  Movement(EngineState* state, Residency* residency, Space* space);

  // Starts writing a committed DRAM block to NVMe.
  // `wanted_by`: why its DRAM copy goes when it is a demotion.
  WriteStart StartWrite(EntryId id, WriteReason reason, policy::DropCause wanted_by = policy::DropReason::kOwnSpace);
  // Of a block that is to be on NVMe, if it is not there yet. While room is being made, or records still come in, its
  // timer tries again.
  void WriteThrough(EntryId id);
  // It would survive kill -9: whoever waits to hear that is told.
  void TellDurable(EntryId id);

  // Starts the promotion of a block whose only copy is on NVMe into `slot`, a taken DRAM slot. False (nothing started,
  // the slot is still the caller's) when the disk has too much to do, in all or of this tenant, or is offline.
  bool StartRead(EntryId id, SlotId slot, Reader reader);
  // REQUIRES: one is under way.
  void JoinRead(EntryId id, Reader reader);
  // `who` waits for it no longer: its `done` does not run. A read that nobody waits for, and that the disk has not
  // begun, is not done at all; one that it has begun keeps its slot until it ends.
  void LeaveRead(EntryId id, const void* who);

  // A block found in the headers of the file, whose record was lost with the catalog.
  void RecordAgain(const tier::CatalogRecord& record) { Record(record); }
  bool has_unrecorded() const { return !unrecorded_.empty(); }
  // Offers the catalog again what it had no room for.
  void Tick();

 private:
  // Where a block's copy on NVMe is, or is being written; None: there is none.
  SlotId NvmeSlotOf(EntryId id) const;
  // Is it worth what writing it takes off the life of the disk, now?
  bool MayWrite(const index::Entry& entry, uint64_t bytes, WriteReason reason) const;
  bool IsToBeWrittenThrough(EntryId id) const;
  void WriteThroughLater(EntryId id);
  void FinishWrite(EntryId id, SlotId slot, WriteReason reason, policy::DropCause wanted_by,
                   absl::StatusOr<tier::BlockHeader> written);
  void Record(const tier::CatalogRecord& record);
  // With what has changed since: a pin, a later use.
  tier::CatalogRecord UpToDate(tier::CatalogRecord record) const;
  void MarkDurable(const tier::CatalogRecord& record);
  void FinishRead(EntryId id, absl::Status status);

  EngineState& state_;
  Residency& residency_;
  Space& space_;
  // From the disk to DRAM.
  struct Reading {
    SlotId to;
    Urgency urgency = Urgency::kDemand;  // the disk knows it as
    std::vector<Reader> readers;
  };
  absl::flat_hash_map<EntryId, Reading> readings_;
  absl::flat_hash_map<EntryId, SlotId> writing_to_;  // and not yet its copy
  // What the catalog had no room for, or failed to write. At most one for each slot that is in use, plus what a tick
  // finds out of date.
  std::deque<tier::CatalogRecord> unrecorded_;
};

}  // namespace kvartal::engine
