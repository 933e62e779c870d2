// The address spaces of several disks laid one after another: the tier's SlotIds on one side, places on a disk on the
// other. Immutable. Invariant: a slot of the tier lies on at most one disk; with one disk both are the same number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/base/ids.h"
#include "daemon/base/limits.h"

namespace kvartal::tier {

class DiskMap {
 public:
  struct Place {
    size_t disk;
    SlotId slot;  // on that disk
  };

  // REQUIRES: they are kNvmeBytesMax together at most.
  explicit DiskMap(const std::vector<uint64_t>& disk_bytes) {
    uint64_t end = 0;
    for (const uint64_t bytes : disk_bytes) ends_.push_back(end += bytes / kSlotAlignBytes);
    KV_CHECK(end <= kNvmeBytesMax / kSlotAlignBytes);
  }

  size_t disks() const { return ends_.size(); }
  // nullopt: beyond the last disk.
  std::optional<Place> Find(SlotId slot) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), uint64_t{slot.value()});
    if (!slot.valid() || end == ends_.end()) return std::nullopt;
    const auto disk = static_cast<size_t>(end - ends_.begin());
    return Place{disk, SlotId(static_cast<uint32_t>(slot.value() - BeginOf(disk)))};
  }
  // nullopt: beyond the end of that disk.
  std::optional<SlotId> SlotAt(size_t disk, SlotId on_disk) const {
    const uint64_t slot = BeginOf(disk) + on_disk.value();
    if (slot >= ends_[disk]) return std::nullopt;
    return SlotId(static_cast<uint32_t>(slot));
  }

 private:
  uint64_t BeginOf(size_t disk) const { return disk == 0 ? 0 : ends_[disk - 1]; }

  std::vector<uint64_t> ends_;  // by disk: the first slot behind it
};

}  // namespace kvartal::tier
