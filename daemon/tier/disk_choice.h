// Which disk a block is written to. Pure functions over a snapshot of the disks' loads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kvartal::tier {

struct DiskLoad {
  bool takes = false;         // it is healthy and has a free slot of the size that is wanted
  uint64_t queued_bytes = 0;  // of transfers it has accepted, and not ended
  uint64_t free_bytes = 0;
  uint64_t capacity_bytes = 0;
};

// Blocks of one chain that lie on one disk, one after another, up to the parent of the block in question, with which
// no other block goes on.
struct ChainRun {
  size_t disk = 0;
  uint64_t bytes = 0;
};

// The parent's disk until kDiskRunBytes of the chain lie there together, so that they are read and given up together;
// then another one, so that a long prefix is read by several. That is the disk with the least in its queue, in steps of
// kDiskUnderWayBytes: a slower one has more. Among equals the one with the largest part of it free, so that all are
// full at the same time; then the first. nullopt: none takes it.
std::optional<size_t> ChooseDisk(std::span<const DiskLoad> disks, const std::optional<ChainRun>& run);

}  // namespace kvartal::tier
