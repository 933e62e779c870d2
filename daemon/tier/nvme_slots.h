// Whose slots are whose: which belong to a domain, which of them are taken, and how many transfers each has under way.
// Confined to the engine loop. No I/O.
// Invariants: a slot belongs to one domain from Grow or Adopt to Shrink; it changes hands only while not taken and with
// no transfer under way.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/base/ids.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"
#include "daemon/tier/nvme_segment.h"

namespace kvartal::tier {

// What a block of that size has for its payload.
inline uint32_t PayloadOf(uint32_t slot_bytes) { return static_cast<uint32_t>(RoundUp(slot_bytes, kSlotAlignBytes)); }

class NvmeSlots {
 public:
  explicit NvmeSlots(SegmentTable* segments) : segments_(segments) {}

  // What a slot costs: its header and its payload.
  static uint64_t ExtentBytes(uint32_t payload_bytes) { return kNvmeHeaderBytes + payload_bytes; }

  // Below, sizes are payload bytes, a multiple of kSlotAlignBytes. False when no slot of the size is free.
  bool Grow(DomainId domain, uint32_t payload_bytes);
  // A slot that the next Take gets: see SegmentTable::ReserveBehind.
  bool GrowBehind(DomainId domain, uint32_t payload_bytes, SlotId after);
  SlotId Take(DomainId domain, uint32_t payload_bytes);
  // With a transfer under way (a bug of the caller) the slot becomes empty when the last one ends.
  void Give(DomainId domain, SlotId slot);
  uint64_t Shrink(DomainId domain, uint64_t keep_bytes);
  bool Adopt(DomainId domain, SlotId slot, uint32_t payload_bytes, uint64_t generation, uint32_t key_id);

  // REQUIRES: taken, below.
  uint32_t PayloadBytesOf(SlotId slot) const;
  DomainId DomainOf(SlotId slot) const { return Taken(slot).domain; }
  uint64_t GenerationOf(SlotId slot) const { return Taken(slot).generation; }
  void SetGeneration(SlotId slot, uint64_t generation) { Taken(slot).generation = generation; }
  // The node's key that the block in it is encrypted under; 0: it is in the clear.
  uint32_t KeyIdOf(SlotId slot) const { return Taken(slot).key_id; }
  void SetKeyId(SlotId slot, uint32_t key_id) { Taken(slot).key_id = key_id; }
  // Written or read in this life: what lies there is its domain's. A record may be older than its slot, which then
  // holds another's block.
  bool Proven(SlotId slot) const { return Taken(slot).proven; }
  void SetProven(SlotId slot) { Taken(slot).proven = true; }
  // What it holds, so that it can be asked about; a slot that is given forgets it.
  void SetHolder(SlotId slot, EntryId holder) { Taken(slot).holder = holder; }
  // Of the chain it is part of, what lies on this disk together up to it and with it; 0: not known. nullopt: another
  // block goes on with that.
  std::optional<uint64_t> RunBytesOf(SlotId slot) const;
  void GoOnBehind(SlotId slot);
  void SetRunBytes(SlotId slot, uint64_t bytes) { Taken(slot).run_bytes = static_cast<uint32_t>(bytes); }
  // A slot whose last transfer the device failed at is kept out of use for a while once it leaves its domain.
  void SetFailed(SlotId slot, bool failed) { Taken(slot).transfer_failed = failed; }
  bool Idle(SlotId slot) const { return Taken(slot).transfers == 0; }
  void BeginTransfer(SlotId slot);
  void EndTransfer(SlotId slot);

  // Emptying a segment: see SegmentTable. One with a slot that is kept out of use cannot become empty.
  bool StartLeaving(uint32_t payload_bytes);
  // What the slots of the segment that is leaving hold.
  std::vector<EntryId> LeavingHolders() const;

  uint64_t EmptyBytes(DomainId domain) const;
  uint64_t granted_bytes() const { return granted_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t slots_taken() const { return slots_taken_; }
  // Of slots with a transfer under way, once for each.
  uint64_t transferring_bytes() const { return transferring_bytes_; }
  size_t quarantined() const { return quarantine_.size(); }

 private:
  static constexpr uint32_t kGoesOn = UINT32_MAX;

  struct Slot {
    DomainId domain;
    EntryId holder = EntryId::None();
    uint64_t generation = 0;  // of the block in it; 0: not known
    uint32_t key_id = 0;
    uint32_t transfers = 0;
    bool taken = false;
    bool proven = true;
    bool give_later = false;
    bool transfer_failed = false;
    uint32_t run_bytes = 0;  // kGoesOn: see RunBytesOf
  };
  struct Domain {
    uint64_t empty_bytes = 0;
    absl::flat_hash_map<uint32_t, std::vector<SlotId>> empty;  // by payload bytes; Take gets the last
    std::vector<SlotId> failed;                                // empty too, yet never taken again
  };

  Slot& Taken(SlotId slot);
  const Slot& Taken(SlotId slot) const { return const_cast<NvmeSlots*>(this)->Taken(slot); }
  bool Add(DomainId domain, uint32_t payload_bytes, SlotId slot);
  void MakeEmpty(SlotId slot);
  void LeaveDomain(SlotId slot);
  void Quarantine(SlotId slot);

  SegmentTable* const segments_;
  absl::flat_hash_map<SlotId, Slot> slots_;
  absl::flat_hash_map<DomainId, Domain> domains_;
  std::deque<SlotId> quarantine_;  // oldest first
  uint64_t granted_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t slots_taken_ = 0;
  uint64_t transferring_bytes_ = 0;
};

}  // namespace kvartal::tier
