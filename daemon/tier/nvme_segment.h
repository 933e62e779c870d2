// Which slots of the NVMe file are free: segments, each of one slot size while any of its slots is in use. Pure
// bookkeeping, no I/O. Confined to the engine loop. Invariants: a slot is handed out at most once until it is freed;
// slots of one segment have one size; an empty segment has none; one that is leaving hands out no slot.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "daemon/base/ids.h"

namespace kvartal::tier {

class SegmentTable {
 public:
  // Segments lie back to back in [first_byte, end_byte); the last one may be shorter. `segment_bytes` is a power of
  // two.
  SegmentTable(uint64_t first_byte, uint64_t end_byte, uint64_t segment_bytes);

  // Sizes below are payload bytes of a slot, a multiple of kSlotAlignBytes; its header comes on top.
  // While no segment is empty, what one that is leaving needs of its size is not to be had.
  bool CanReserve(uint32_t payload_bytes) const;
  // The next free slot of the open segment, so that what is written together lies together; a full one is followed by
  // the emptiest segment of that size, then by one without a size. None when there is none. REQUIRES: CanReserve, but
  // for what leaves a segment.
  SlotId Reserve(uint32_t payload_bytes);
  // The slot right behind `after`, so that what goes together lies together. Where that is not free, or `after` is
  // None, the first of kSlotRun free ones, which others leave alone while they have any of their own. Else as above.
  // REQUIRES: CanReserve.
  SlotId ReserveBehind(uint32_t payload_bytes, SlotId after);
  // A slot that holds a block already. False: out of bounds, not at a slot's start for that size, in use, or its
  // segment has another size.
  bool Claim(SlotId slot, uint32_t payload_bytes);
  // REQUIRES: in use.
  void Free(SlotId slot);

  // --- emptying one segment, so that it may get another slot size
  // Chooses the one with the fewest bytes to move: the others of its size have a free slot for each of its blocks, and
  // it can hold a slot of `payload_bytes`. False: there is none. REQUIRES: none is leaving.
  bool StartLeaving(uint32_t payload_bytes, absl::FunctionRef<bool(uint32_t)> may_leave);
  // It hands out slots again.
  void StopLeaving();
  // nullopt: none is; or it has become empty, and is as good as new.
  std::optional<uint32_t> leaving() const;

  bool InUse(SlotId slot) const;
  // nullopt when `slot` is in no segment.
  std::optional<uint32_t> SegmentOf(SlotId slot) const;
  // 0: no size, the segment is empty.
  uint32_t PayloadBytesOf(uint32_t segment) const { return segments_[segment].payload_bytes; }
  uint64_t HeaderOffsetOf(uint32_t segment) const { return first_byte_ + segment * segment_bytes_; }
  uint32_t SlotsOf(uint32_t segment, uint32_t payload_bytes) const;
  SlotId SlotAt(uint32_t segment, uint32_t payload_bytes, uint32_t index) const;

  // What free slots of other sizes cover, but for those of a segment that is leaving. O(sizes).
  uint64_t FreeInOtherSizes(uint32_t payload_bytes) const;

  uint32_t segment_count() const { return static_cast<uint32_t>(segments_.size()); }
  uint64_t slots_used() const { return slots_used_; }
  // All segments without their headers: what slots may cover at most.
  uint64_t capacity_bytes() const;
  // KV_CHECKs the invariants. O(slots): tests.
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Segments of a size, by how full they are: near enough to "emptiest first", and every move is O(1).
  static constexpr uint32_t kFillLevels = 16;

  struct Segment {
    uint32_t payload_bytes = 0;
    uint32_t slots = 0;
    uint32_t used = 0;
    uint32_t cursor = 0;                  // where the search for a free slot goes on
    uint32_t prev = kNone, next = kNone;  // in the list of its level
    std::vector<uint64_t> free;           // a bit a slot
    std::vector<uint64_t> free_words;     // a bit a word of `free` that is not zero
  };
  struct SizeClass {
    uint32_t open = kNone;
    uint64_t free_slots = 0;                             // in all segments of the size
    std::array<uint32_t, kFillLevels> levels = Empty();  // heads: segments with a free slot, the open one left out
    static constexpr std::array<uint32_t, kFillLevels> Empty() {
      std::array<uint32_t, kFillLevels> heads{};
      heads.fill(kNone);
      return heads;
    }
  };
  struct Place {
    uint32_t segment;
    uint32_t index;
  };

  uint64_t BytesOf(uint32_t segment) const;
  std::optional<Place> PlaceOf(SlotId slot) const;
  uint32_t FindUnassigned(uint32_t payload_bytes) const;
  void Assign(uint32_t id, uint32_t payload_bytes);
  void Unassign(uint32_t id);
  uint32_t NextSegment(uint32_t payload_bytes);
  static uint32_t LevelOf(const Segment& segment);
  // By how full it is; kNone when it has none.
  uint32_t EmptiestOf(const SizeClass& size_class, absl::FunctionRef<bool(uint32_t)> may_leave) const;
  void Link(SizeClass* size_class, uint32_t id);
  void Unlink(SizeClass* size_class, uint32_t id);
  void Withdraw(SizeClass* size_class, uint32_t id);
  static uint32_t FirstFree(const Segment& segment);
  static uint32_t FirstFreeRun(const Segment& segment);
  void MarkUsed(uint32_t id, uint32_t index);
  void MarkFree(uint32_t id, uint32_t index);

  const uint64_t first_byte_;
  const uint64_t end_byte_;
  const uint64_t segment_bytes_;
  std::vector<Segment> segments_;
  // Empty segments, the short last one first: it is the last to be taken, and the only one that a size may not fit.
  std::vector<uint32_t> unassigned_;
  std::vector<uint32_t> unassigned_at_;  // by segment: its position there
  absl::flat_hash_map<uint32_t, SizeClass> classes_;
  uint32_t leaving_ = kNone;  // its free slots are in no class
  uint64_t slots_used_ = 0;
};

}  // namespace kvartal::tier
