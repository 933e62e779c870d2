#include "daemon/policy/ttl_wheel.h"

#include <bit>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::policy {

TtlWheel::TtlWheel(uint32_t now_tick) : at_(now_tick) {
  chunks_.push_back(std::make_unique<Node[]>(size_t{1} << kChunkBits));
  for (uint32_t head = kPending; head < kFirstBlock; ++head) NodeAt(head) = {head, head, 0};
}

uint32_t TtlWheel::NumberOf(EntryId id) {
  KV_CHECK(id.value() < UINT32_MAX - kFirstBlock);
  return kFirstBlock + id.value();
}

uint32_t TtlWheel::ListFor(uint32_t due_tick) const {
  if (due_tick <= at_) return kPending;
  const uint32_t level = static_cast<uint32_t>(std::bit_width(due_tick ^ at_) - 1) / kSlotBits;
  return kFirstSlot + level * kSlots + ((due_tick >> (level * kSlotBits)) & (kSlots - 1));
}

void TtlWheel::Append(uint32_t list, uint32_t number) {
  Node& head = NodeAt(list);
  Node& node = NodeAt(number);
  node.prev = head.prev;
  node.next = list;
  NodeAt(head.prev).next = number;
  head.prev = number;
}

void TtlWheel::Unlink(uint32_t number) {
  Node& node = NodeAt(number);
  NodeAt(node.prev).next = node.next;
  NodeAt(node.next).prev = node.prev;
  node.next = 0;
}

void TtlWheel::MoveAllToPending(uint32_t list) {
  Node& head = NodeAt(list);
  if (head.next == list) return;
  Node& pending = NodeAt(kPending);
  NodeAt(head.next).prev = pending.prev;
  NodeAt(pending.prev).next = head.next;
  NodeAt(head.prev).next = kPending;
  pending.prev = head.prev;
  head.prev = head.next = list;
}

void TtlWheel::Schedule(EntryId id, uint32_t due_tick) {
  Cancel(id);
  if (due_tick == kNever) return;
  const uint32_t number = NumberOf(id);
  while (!Exists(number)) chunks_.push_back(std::make_unique<Node[]>(size_t{1} << kChunkBits));
  NodeAt(number).due = due_tick;
  Append(ListFor(due_tick), number);
  ++size_;
}

void TtlWheel::Cancel(EntryId id) {
  if (DueOf(id) == kNever) return;
  Unlink(NumberOf(id));
  --size_;
}

uint32_t TtlWheel::DueOf(EntryId id) const {
  const uint32_t number = NumberOf(id);
  return Exists(number) && NodeAt(number).next != 0 ? NodeAt(number).due : kNever;
}

void TtlWheel::Advance(uint32_t now_tick) {
  for (uint32_t steps = 0; at_ < now_tick && steps < kTimerStepsMax; ++steps) {
    ++at_;
    // A slot of a level is entered when all levels below begin anew.
    for (uint32_t level = 0; level < kLevels; ++level) {
      const uint32_t slot = (at_ >> (level * kSlotBits)) & (kSlots - 1);
      MoveAllToPending(kFirstSlot + level * kSlots + slot);
      if (slot != 0) break;
    }
  }
}

EntryId TtlWheel::PopDue(uint32_t* work) {
  for (; *work > 0; --*work) {
    const uint32_t number = NodeAt(kPending).next;
    if (number == kPending) break;
    const uint32_t due_tick = NodeAt(number).due;
    Unlink(number);
    if (due_tick <= at_) {
      --*work;
      --size_;
      return EntryId(number - kFirstBlock);
    }
    Append(ListFor(due_tick), number);
  }
  return EntryId::None();
}

size_t TtlWheel::MemoryBytes() const { return chunks_.size() * (sizeof(Node) << kChunkBits); }

}  // namespace kvartal::policy
