#include "daemon/tier/nvme_segment.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::tier {
namespace {

constexpr uint32_t kWordBits = 64;

uint64_t StrideOf(uint32_t payload_bytes) { return kNvmeHeaderBytes + payload_bytes; }

// The first set bit of `words` at or after `from`; `size` when there is none.
uint32_t FindBit(const std::vector<uint64_t>& words, uint32_t from, uint32_t size) {
  for (uint32_t word = from / kWordBits; word < words.size(); ++word) {
    uint64_t bits = words[word];
    if (word == from / kWordBits) bits &= ~uint64_t{0} << (from % kWordBits);
    if (bits != 0) return word * kWordBits + static_cast<uint32_t>(std::countr_zero(bits));
  }
  return size;
}

}  // namespace

SegmentTable::SegmentTable(uint64_t first_byte, uint64_t end_byte, uint64_t segment_bytes)
    : first_byte_(first_byte), end_byte_(std::max(first_byte, end_byte)), segment_bytes_(segment_bytes) {
  KV_CHECK(std::has_single_bit(segment_bytes) && first_byte % kSlotAlignBytes == 0);
  const uint64_t bytes = end_byte_ - first_byte_;
  uint64_t count = bytes / segment_bytes;
  // A tail with no room for the smallest slot is not a segment.
  if (bytes % segment_bytes >= kNvmeHeaderBytes + StrideOf(kSlotAlignBytes)) ++count;
  segments_.resize(count);
  unassigned_at_.resize(count);
  for (uint64_t id = count; id-- > 0;) {
    unassigned_at_[id] = static_cast<uint32_t>(unassigned_.size());
    unassigned_.push_back(static_cast<uint32_t>(id));
  }
}

uint64_t SegmentTable::BytesOf(uint32_t segment) const {
  return std::min(segment_bytes_, end_byte_ - HeaderOffsetOf(segment));
}

uint32_t SegmentTable::SlotsOf(uint32_t segment, uint32_t payload_bytes) const {
  return static_cast<uint32_t>((BytesOf(segment) - kNvmeHeaderBytes) / StrideOf(payload_bytes));
}

SlotId SegmentTable::SlotAt(uint32_t segment, uint32_t payload_bytes, uint32_t index) const {
  const uint64_t offset = HeaderOffsetOf(segment) + kNvmeHeaderBytes + index * StrideOf(payload_bytes);
  return SlotId(static_cast<uint32_t>(offset / kSlotAlignBytes));
}

uint64_t SegmentTable::FreeInOtherSizes(uint32_t payload_bytes) const {
  uint64_t bytes = 0;
  for (const auto& [payload, size_class] : classes_) {
    if (payload != payload_bytes) bytes += size_class.free_slots * (kNvmeHeaderBytes + payload);
  }
  return bytes;
}

uint64_t SegmentTable::capacity_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t id = 0; id < segment_count(); ++id) bytes += BytesOf(id) - kNvmeHeaderBytes;
  return bytes;
}

uint32_t SegmentTable::FindUnassigned(uint32_t payload_bytes) const {
  if (unassigned_.empty()) return kNone;
  const uint32_t id = unassigned_.back();
  return SlotsOf(id, payload_bytes) > 0 ? id : kNone;
}

bool SegmentTable::CanReserve(uint32_t payload_bytes) const {
  const auto it = classes_.find(payload_bytes);
  const uint64_t free = it == classes_.end() ? 0 : it->second.free_slots;
  const bool leaves = leaving_ != kNone && segments_[leaving_].payload_bytes == payload_bytes;
  return free > (leaves ? segments_[leaving_].used : 0) || FindUnassigned(payload_bytes) != kNone;
}

SlotId SegmentTable::Reserve(uint32_t payload_bytes) {
  KV_CHECK(payload_bytes > 0 && payload_bytes % kSlotAlignBytes == 0);
  const uint32_t id = NextSegment(payload_bytes);
  if (id == kNone) return SlotId::None();
  Segment& segment = segments_[id];
  const uint32_t index = FirstFree(segment);
  MarkUsed(id, index);
  segment.cursor = index + 1;
  return SlotAt(id, payload_bytes, index);
}

SlotId SegmentTable::ReserveBehind(uint32_t payload_bytes, SlotId after) {
  if (const std::optional<Place> place = PlaceOf(after); place.has_value()) {
    const uint32_t index = place->index + 1;
    const Segment& segment = segments_[place->segment];
    const bool there = segment.payload_bytes == payload_bytes && place->segment != leaving_ && index < segment.slots;
    if (there && (segment.free[index / kWordBits] >> (index % kWordBits) & 1) != 0) {
      MarkUsed(place->segment, index);
      return SlotAt(place->segment, payload_bytes, index);
    }
  }
  const uint32_t id = NextSegment(payload_bytes);
  if (id == kNone) return SlotId::None();
  const uint32_t index = FirstFreeRun(segments_[id]);
  if (index == kNone) return Reserve(payload_bytes);
  MarkUsed(id, index);
  segments_[id].cursor = index + kSlotRun;
  return SlotAt(id, payload_bytes, index);
}

// The segment to reserve in, made the open one of its size.
uint32_t SegmentTable::NextSegment(uint32_t payload_bytes) {
  const auto it = classes_.find(payload_bytes);
  if (it == classes_.end() || it->second.free_slots == 0) {
    const uint32_t id = FindUnassigned(payload_bytes);
    if (id == kNone) return kNone;
    Assign(id, payload_bytes);
    classes_[payload_bytes].open = id;
    return id;
  }
  SizeClass& size_class = it->second;
  if (size_class.open != kNone && segments_[size_class.open].used < segments_[size_class.open].slots) {
    return size_class.open;
  }
  for (const uint32_t head : size_class.levels) {
    if (head == kNone) continue;
    Unlink(&size_class, head);
    segments_[head].cursor = 0;
    size_class.open = head;
    return head;
  }
  KV_CHECK(false);
}

bool SegmentTable::Claim(SlotId slot, uint32_t payload_bytes) {
  if (payload_bytes == 0 || payload_bytes % kSlotAlignBytes != 0 || payload_bytes > kBlockBytesMax) return false;
  const std::optional<uint32_t> id = SegmentOf(slot);
  if (!id.has_value()) return false;
  Segment& segment = segments_[*id];
  if (*id == leaving_) return false;
  if (segment.payload_bytes != 0 && segment.payload_bytes != payload_bytes) return false;
  const uint64_t into = uint64_t{slot.value()} * kSlotAlignBytes - HeaderOffsetOf(*id);
  if (into < kNvmeHeaderBytes || (into - kNvmeHeaderBytes) % StrideOf(payload_bytes) != 0) return false;
  const auto index = static_cast<uint32_t>((into - kNvmeHeaderBytes) / StrideOf(payload_bytes));
  if (index >= SlotsOf(*id, payload_bytes) || InUse(slot)) return false;
  if (segment.payload_bytes == 0) {
    Assign(*id, payload_bytes);
    Link(&classes_[payload_bytes], *id);
  }
  MarkUsed(*id, index);
  return true;
}

void SegmentTable::Free(SlotId slot) {
  const std::optional<Place> place = PlaceOf(slot);
  KV_CHECK(place.has_value() && InUse(slot));
  MarkFree(place->segment, place->index);
  if (segments_[place->segment].used == 0) Unassign(place->segment);
}

bool SegmentTable::InUse(SlotId slot) const {
  const std::optional<Place> place = PlaceOf(slot);
  if (!place.has_value()) return false;
  const uint64_t word = segments_[place->segment].free[place->index / kWordBits];
  return (word >> (place->index % kWordBits) & 1) == 0;
}

std::optional<uint32_t> SegmentTable::SegmentOf(SlotId slot) const {
  if (!slot.valid()) return std::nullopt;
  const uint64_t offset = uint64_t{slot.value()} * kSlotAlignBytes;
  if (offset < first_byte_ || offset >= end_byte_) return std::nullopt;
  const uint64_t id = (offset - first_byte_) / segment_bytes_;
  if (id >= segments_.size()) return std::nullopt;
  return static_cast<uint32_t>(id);
}

// Where a slot of the segment's present size starts; nullopt for any other SlotId.
std::optional<SegmentTable::Place> SegmentTable::PlaceOf(SlotId slot) const {
  const std::optional<uint32_t> id = SegmentOf(slot);
  if (!id.has_value() || segments_[*id].payload_bytes == 0) return std::nullopt;
  const uint64_t into = uint64_t{slot.value()} * kSlotAlignBytes - HeaderOffsetOf(*id);
  const uint64_t stride = StrideOf(segments_[*id].payload_bytes);
  if (into < kNvmeHeaderBytes || (into - kNvmeHeaderBytes) % stride != 0) return std::nullopt;
  const uint64_t index = (into - kNvmeHeaderBytes) / stride;
  if (index >= segments_[*id].slots) return std::nullopt;
  return Place{*id, static_cast<uint32_t>(index)};
}

// REQUIRES: unassigned. Leaves it in no list.
void SegmentTable::Assign(uint32_t id, uint32_t payload_bytes) {
  const uint32_t at = unassigned_at_[id];
  KV_CHECK(at < unassigned_.size() && unassigned_[at] == id);
  // The order below the end matters for the short segment alone, which is last by number and first in the list.
  const uint32_t moved = unassigned_.back();
  unassigned_[at] = moved;
  unassigned_at_[moved] = at;
  unassigned_.pop_back();

  Segment& segment = segments_[id];
  segment.payload_bytes = payload_bytes;
  segment.slots = SlotsOf(id, payload_bytes);
  segment.used = 0;
  segment.cursor = 0;
  segment.free.assign((segment.slots + kWordBits - 1) / kWordBits, ~uint64_t{0});
  if (segment.slots % kWordBits != 0) segment.free.back() = (uint64_t{1} << (segment.slots % kWordBits)) - 1;
  const auto words = static_cast<uint32_t>(segment.free.size());
  segment.free_words.assign((words + kWordBits - 1) / kWordBits, ~uint64_t{0});
  if (words % kWordBits != 0) segment.free_words.back() = (uint64_t{1} << (words % kWordBits)) - 1;
  classes_[payload_bytes].free_slots += segment.slots;
}

// REQUIRES: empty.
void SegmentTable::Unassign(uint32_t id) {
  Segment& segment = segments_[id];
  const auto it = classes_.find(segment.payload_bytes);
  KV_CHECK(segment.used == 0 && it != classes_.end());
  if (id == leaving_) {
    leaving_ = kNone;
  } else {
    Withdraw(&it->second, id);
  }
  segment = Segment();
  unassigned_at_[id] = static_cast<uint32_t>(unassigned_.size());
  unassigned_.push_back(id);
  // Keeps the short segment at the front: it is taken last.
  if (id + 1 == segments_.size()) {
    const uint32_t front = unassigned_.front();
    std::swap(unassigned_.front(), unassigned_.back());
    unassigned_at_[front] = unassigned_at_[id];
    unassigned_at_[id] = 0;
  }
}

// Its free slots are the class's no longer.
void SegmentTable::Withdraw(SizeClass* size_class, uint32_t id) {
  const Segment& segment = segments_[id];
  if (size_class->open == id) {
    size_class->open = kNone;
  } else if (segment.used < segment.slots) {
    Unlink(size_class, id);
  }
  size_class->free_slots -= segment.slots - segment.used;
}

uint32_t SegmentTable::EmptiestOf(const SizeClass& size_class, absl::FunctionRef<bool(uint32_t)> may_leave) const {
  uint32_t best = kNone;
  for (uint32_t level = 0; level < kFillLevels && best == kNone; ++level) {
    for (uint32_t id = size_class.levels[level]; id != kNone && best == kNone; id = segments_[id].next) {
      if (may_leave(id)) best = id;
    }
  }
  const uint32_t open = size_class.open;
  if (open == kNone || segments_[open].used == segments_[open].slots || !may_leave(open)) return best;
  return best == kNone || segments_[open].used < segments_[best].used ? open : best;
}

bool SegmentTable::StartLeaving(uint32_t payload_bytes, absl::FunctionRef<bool(uint32_t)> may_leave) {
  KV_CHECK(leaving_ == kNone);
  std::pair<uint64_t, uint32_t> best(0, kNone);  // bytes to move, segment: the same whatever the order of classes
  for (const auto& [size, size_class] : classes_) {
    if (size == payload_bytes || size_class.free_slots == 0) continue;
    const uint32_t id = EmptiestOf(
        size_class, [&](uint32_t candidate) { return SlotsOf(candidate, payload_bytes) > 0 && may_leave(candidate); });
    if (id == kNone || size_class.free_slots < segments_[id].slots) continue;
    const std::pair<uint64_t, uint32_t> cost(segments_[id].used * StrideOf(size), id);
    if (best.second == kNone || cost < best) best = cost;
  }
  if (best.second == kNone) return false;
  Withdraw(&classes_.at(segments_[best.second].payload_bytes), best.second);
  leaving_ = best.second;
  return true;
}

void SegmentTable::StopLeaving() {
  const uint32_t id = std::exchange(leaving_, kNone);
  if (id == kNone) return;
  const Segment& segment = segments_[id];
  SizeClass& size_class = classes_.at(segment.payload_bytes);
  size_class.free_slots += segment.slots - segment.used;
  if (segment.used < segment.slots) Link(&size_class, id);
}

std::optional<uint32_t> SegmentTable::leaving() const {
  return leaving_ == kNone ? std::nullopt : std::optional<uint32_t>(leaving_);
}

uint32_t SegmentTable::LevelOf(const Segment& segment) {
  return static_cast<uint32_t>(uint64_t{segment.used} * kFillLevels / segment.slots);
}

void SegmentTable::Link(SizeClass* size_class, uint32_t id) {
  Segment& segment = segments_[id];
  uint32_t& head = size_class->levels[LevelOf(segment)];
  segment.prev = kNone;
  segment.next = head;
  if (head != kNone) segments_[head].prev = id;
  head = id;
}

// REQUIRES: linked at the level of its present fill.
void SegmentTable::Unlink(SizeClass* size_class, uint32_t id) {
  Segment& segment = segments_[id];
  if (segment.prev != kNone) {
    segments_[segment.prev].next = segment.next;
  } else {
    KV_CHECK(size_class->levels[LevelOf(segment)] == id);
    size_class->levels[LevelOf(segment)] = segment.next;
  }
  if (segment.next != kNone) segments_[segment.next].prev = segment.prev;
  segment.prev = segment.next = kNone;
}

// REQUIRES: one is free.
uint32_t SegmentTable::FirstFree(const Segment& segment) {
  const auto words = static_cast<uint32_t>(segment.free.size());
  for (const uint32_t from : {segment.cursor, uint32_t{0}}) {
    if (from >= segment.slots) continue;
    const uint32_t word = from / kWordBits;
    const uint64_t here = segment.free[word] & (~uint64_t{0} << (from % kWordBits));
    if (here != 0) return word * kWordBits + static_cast<uint32_t>(std::countr_zero(here));
    const uint32_t next = FindBit(segment.free_words, word + 1, words);
    if (next < words) return next * kWordBits + static_cast<uint32_t>(std::countr_zero(segment.free[next]));
  }
  KV_CHECK(false);
}

// kNone when every run has a slot in use.
uint32_t SegmentTable::FirstFreeRun(const Segment& segment) {
  static_assert(kWordBits % kSlotRun == 0);
  constexpr uint64_t kRun = (uint64_t{1} << kSlotRun) - 1;
  for (uint32_t index = segment.cursor / kSlotRun * kSlotRun; index < segment.slots; index += kSlotRun) {
    if ((segment.free[index / kWordBits] >> (index % kWordBits) & kRun) == kRun) return index;
  }
  return kNone;
}

void SegmentTable::MarkUsed(uint32_t id, uint32_t index) {
  Segment& segment = segments_[id];
  SizeClass& size_class = classes_.at(segment.payload_bytes);
  const bool listed = size_class.open != id;
  if (listed) Unlink(&size_class, id);
  const uint32_t word = index / kWordBits;
  segment.free[word] &= ~(uint64_t{1} << (index % kWordBits));
  if (segment.free[word] == 0) segment.free_words[word / kWordBits] &= ~(uint64_t{1} << (word % kWordBits));
  ++segment.used;
  ++slots_used_;
  --size_class.free_slots;
  if (listed && segment.used < segment.slots) Link(&size_class, id);
}

void SegmentTable::MarkFree(uint32_t id, uint32_t index) {
  Segment& segment = segments_[id];
  SizeClass& size_class = classes_.at(segment.payload_bytes);
  const bool listed = size_class.open != id && id != leaving_;
  if (listed && segment.used < segment.slots) Unlink(&size_class, id);
  const uint32_t word = index / kWordBits;
  segment.free[word] |= uint64_t{1} << (index % kWordBits);
  segment.free_words[word / kWordBits] |= uint64_t{1} << (word % kWordBits);
  --segment.used;
  --slots_used_;
  if (id != leaving_) ++size_class.free_slots;
  if (listed) Link(&size_class, id);
}

void SegmentTable::CheckInvariants() const {
  uint64_t used_total = 0;
  absl::flat_hash_map<uint32_t, uint64_t> free_by_size;
  size_t empty = 0;
  for (uint32_t id = 0; id < segment_count(); ++id) {
    const Segment& segment = segments_[id];
    if (segment.payload_bytes == 0) {
      ++empty;
      KV_CHECK(segment.used == 0 && unassigned_[unassigned_at_[id]] == id);
      continue;
    }
    uint32_t free = 0;
    for (size_t word = 0; word < segment.free.size(); ++word) {
      free += static_cast<uint32_t>(std::popcount(segment.free[word]));
      const bool summary = (segment.free_words[word / kWordBits] >> (word % kWordBits) & 1) != 0;
      KV_CHECK(summary == (segment.free[word] != 0));
    }
    KV_CHECK(segment.used > 0 && free + segment.used == segment.slots);
    KV_CHECK(segment.slots == SlotsOf(id, segment.payload_bytes));
    used_total += segment.used;
    if (id != leaving_) free_by_size[segment.payload_bytes] += free;
  }
  KV_CHECK(empty == unassigned_.size() && used_total == slots_used_);
  for (const auto& [size, size_class] : classes_) {
    KV_CHECK(size_class.free_slots == free_by_size[size]);
    for (uint32_t level = 0; level < kFillLevels; ++level) {
      for (uint32_t id = size_class.levels[level]; id != kNone; id = segments_[id].next) {
        KV_CHECK(segments_[id].payload_bytes == size && LevelOf(segments_[id]) == level);
        KV_CHECK(id != size_class.open && id != leaving_);
      }
    }
  }
}

}  // namespace kvartal::tier
