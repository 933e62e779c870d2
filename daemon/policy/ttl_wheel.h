// Timers of blocks: a hierarchical timing wheel, at most one timer a block. Schedule and Cancel are O(1); a timer moves
// at most three times before its tick.
// Confined to the engine loop.
// Invariants: a timer fires at or after its tick, never before; what is done a call is bounded by the caller's work,
// and what is left over goes first the next time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/base/ids.h"

namespace kvartal::policy {

class TtlWheel {
 public:
  static constexpr uint32_t kNever = UINT32_MAX;

  explicit TtlWheel(uint32_t now_tick);

  // Gives `id` its timer, or moves it. kNever: none.
  void Schedule(EntryId id, uint32_t due_tick);
  void Cancel(EntryId id);
  // kNever when it has no timer.
  uint32_t DueOf(EntryId id) const;

  // Time goes on, by kTimerStepsMax ticks at most; the next call catches up.
  void Advance(uint32_t now_tick);
  // A block whose tick has come; its timer is gone. None: no more, or `work` is used up: each timer looked at takes 1.
  EntryId PopDue(uint32_t* work);
  // Timers wait to be looked at: PopDue has something to do.
  bool behind() const { return NodeAt(kPending).next != kPending; }

  size_t size() const { return size_; }
  size_t MemoryBytes() const;

 private:
  static constexpr uint32_t kLevels = 4;
  static constexpr uint32_t kSlotBits = 8;
  static constexpr uint32_t kSlots = 1u << kSlotBits;
  // Heads of lists come first among the nodes, those of blocks follow. 0 is no node.
  static constexpr uint32_t kPending = 1;
  static constexpr uint32_t kFirstSlot = 2;
  static constexpr uint32_t kFirstBlock = kFirstSlot + kLevels * kSlots;
  static constexpr uint32_t kChunkBits = 16;

  // In a circular list; `next` 0: in none.
  struct Node {
    uint32_t prev = 0;
    uint32_t next = 0;
    uint32_t due = 0;
  };

  static uint32_t NumberOf(EntryId id);
  Node& NodeAt(uint32_t number) { return chunks_[number >> kChunkBits][number & ((1u << kChunkBits) - 1)]; }
  const Node& NodeAt(uint32_t number) const { return const_cast<TtlWheel*>(this)->NodeAt(number); }
  bool Exists(uint32_t number) const { return number >> kChunkBits < chunks_.size(); }
  // The list for a tick, as seen from now: its slot of the highest level on which the two differ.
  uint32_t ListFor(uint32_t due_tick) const;
  void Append(uint32_t list, uint32_t number);
  void Unlink(uint32_t number);
  void MoveAllToPending(uint32_t list);

  std::vector<std::unique_ptr<Node[]>> chunks_;
  uint32_t at_;  // every list up to here has been moved to the pending ones
  size_t size_ = 0;
};

}  // namespace kvartal::policy
