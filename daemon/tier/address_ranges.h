// The free address ranges of one arena: first fit, neighbours merged.
// Confined to the engine loop.
// Invariants: ranges are disjoint, never empty and never adjacent; what is given was taken before.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace kvartal::tier {

struct AddressRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const AddressRange&, const AddressRange&) = default;
};

class AddressRanges {
 public:
  // Everything in [0, bytes) is free.
  explicit AddressRanges(uint64_t bytes);

  // The lowest free range of exactly `bytes`.
  std::optional<AddressRange> Take(uint64_t bytes);
  // At most `max_bytes` from the first free address at or after `from`.
  std::optional<AddressRange> TakeFrom(uint64_t from, uint64_t max_bytes);
  void Give(const AddressRange& range);

  uint64_t free_bytes() const { return free_bytes_; }
  size_t range_count() const { return free_.size(); }

 private:
  AddressRange Carve(std::map<uint64_t, uint64_t>::iterator it, uint64_t offset, uint64_t bytes);

  const uint64_t size_bytes_;
  uint64_t free_bytes_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes
};

}  // namespace kvartal::tier
