// A block file whose transfers take turns by owner and class: few are handed to the file at a time, the rest waits
// here. Confined to the engine loop.
// Invariants: with the file are at most `under_way_min` transfers, or more while they are less than `under_way_bytes`
// together; one owner's queue being full refuses nobody else.
#pragma once

#include <memory>

#include "daemon/base/limits.h"
#include "daemon/device/block_file.h"

namespace kvartal::device {

struct FairBlockFileOptions {
  // With the file: enough to keep it busy while the loop is, few enough that a newcomer's turn is near.
  size_t under_way_min = 16;
  uint64_t under_way_bytes = kDiskUnderWayBytes;
  size_t owner_queue_max = 0;  // accepted and not ended, one owner; 0: kDiskQueuePerOwnerMax
};

// REQUIRES: `file` takes kDiskQueueMax transfers.
std::unique_ptr<BlockFile> NewFairBlockFile(std::unique_ptr<BlockFile> file, const FairBlockFileOptions& options);

}  // namespace kvartal::device
