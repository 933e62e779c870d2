// One extent of an arena: slots of one size, back to back from its start.
// Confined to the engine loop.
// Invariant: a slot is either free or taken; Take gives the lowest free one.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/tier/address_ranges.h"

namespace kvartal::tier {

class DramExtent {
 public:
  DramExtent(const AddressRange& range, uint32_t slot_bytes);

  const AddressRange& range() const { return range_; }
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint32_t slot_count() const { return slot_count_; }
  uint32_t free_count() const { return free_count_; }
  bool empty() const { return free_count_ == slot_count_; }

  // Offset of the slot in the arena. REQUIRES: free_count() > 0.
  uint64_t Take();
  // REQUIRES: `offset` is a taken slot's.
  void Give(uint64_t offset);

  // What a taken slot holds; a slot that is given forgets it.
  void SetHolder(uint64_t offset, EntryId holder) { holders_[IndexOf(offset)] = holder; }
  // Taken slots with their holders, None where nobody set one.
  std::vector<std::pair<uint64_t, EntryId>> Taken() const;

 private:
  uint32_t IndexOf(uint64_t offset) const;

  const AddressRange range_;
  const uint32_t slot_bytes_;
  const uint32_t slot_count_;
  uint32_t free_count_;
  std::vector<uint64_t> free_bits_;  // one a slot
  std::vector<EntryId> holders_;     // by slot
  std::vector<uint64_t> word_bits_;  // one a word of free_bits_ that is not 0: 4096 slots a word
};

}  // namespace kvartal::tier
