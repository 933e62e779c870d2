#include "daemon/tier/address_ranges.h"

#include <algorithm>
#include <iterator>

#include "daemon/base/check.h"

namespace kvartal::tier {

AddressRanges::AddressRanges(uint64_t bytes) : size_bytes_(bytes), free_bytes_(bytes) {
  if (bytes > 0) free_.emplace(0, bytes);
}

std::optional<AddressRange> AddressRanges::Take(uint64_t bytes) {
  KV_CHECK(bytes > 0);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes) return Carve(it, it->first, bytes);
  }
  return std::nullopt;
}

std::optional<AddressRange> AddressRanges::TakeFrom(uint64_t from, uint64_t max_bytes) {
  auto it = free_.upper_bound(from);
  if (it != free_.begin()) {
    auto before = std::prev(it);
    if (before->first + before->second > from) it = before;
  }
  if (it == free_.end()) return std::nullopt;
  const uint64_t offset = std::max(from, it->first);
  return Carve(it, offset, std::min(max_bytes, it->first + it->second - offset));
}

AddressRange AddressRanges::Carve(std::map<uint64_t, uint64_t>::iterator it, uint64_t offset, uint64_t bytes) {
  const auto [start, length] = *it;
  free_.erase(it);
  if (offset > start) free_.emplace(start, offset - start);
  if (offset + bytes < start + length) free_.emplace(offset + bytes, start + length - offset - bytes);
  free_bytes_ -= bytes;
  return {offset, bytes};
}

void AddressRanges::Give(const AddressRange& range) {
  KV_CHECK(range.bytes > 0 && range.offset + range.bytes <= size_bytes_);
  uint64_t offset = range.offset;
  uint64_t bytes = range.bytes;
  auto after = free_.lower_bound(range.offset);
  if (after != free_.end()) {
    KV_CHECK(range.offset + range.bytes <= after->first);
    if (range.offset + range.bytes == after->first) {
      bytes += after->second;
      after = free_.erase(after);
    }
  }
  if (after != free_.begin()) {
    auto before = std::prev(after);
    KV_CHECK(before->first + before->second <= range.offset);
    if (before->first + before->second == range.offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(offset, bytes);
  free_bytes_ += range.bytes;
}

}  // namespace kvartal::tier
