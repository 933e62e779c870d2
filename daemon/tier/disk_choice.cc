#include "daemon/tier/disk_choice.h"

#include "daemon/base/limits.h"

namespace kvartal::tier {
namespace {

double FreePart(const DiskLoad& disk) {
  return disk.capacity_bytes == 0 ? 0 : static_cast<double>(disk.free_bytes) / static_cast<double>(disk.capacity_bytes);
}

bool Better(const DiskLoad& a, const DiskLoad& b) {
  const uint64_t a_queue = a.queued_bytes / kDiskUnderWayBytes, b_queue = b.queued_bytes / kDiskUnderWayBytes;
  return a_queue != b_queue ? a_queue < b_queue : FreePart(a) > FreePart(b);
}

}  // namespace

std::optional<size_t> ChooseDisk(std::span<const DiskLoad> disks, const std::optional<ChainRun>& run) {
  const bool parents_takes = run.has_value() && disks[run->disk].takes;
  if (parents_takes && run->bytes < kDiskRunBytes) return run->disk;
  std::optional<size_t> best;
  for (size_t i = 0; i < disks.size(); ++i) {
    if (!disks[i].takes || (parents_takes && i == run->disk)) continue;
    if (!best.has_value() || Better(disks[i], disks[*best])) best = i;
  }
  if (!best.has_value() && parents_takes) return run->disk;
  return best;
}

}  // namespace kvartal::tier
