// A block file whose transfers take turns by owner and class: few are handed to the file at a time, the rest waits
// here. Confined to the engine loop.
// Invariants: at most `under_way_max` transfers are with the file; one owner's queue being full refuses nobody else.
#pragma once

#include <memory>

#include "daemon/device/block_file.h"

namespace kvartal::device {

struct FairBlockFileOptions {
  size_t under_way_max =
      16;  // with the file: enough to keep its threads busy, few enough that a newcomer's turn is near
  size_t owner_queue_max = 0;  // accepted and not ended, one owner; 0: kDiskQueuePerOwnerMax
};

// REQUIRES: `file` takes kDiskQueueMax transfers.
std::unique_ptr<BlockFile> NewFairBlockFile(std::unique_ptr<BlockFile> file, const FairBlockFileOptions& options);

}  // namespace kvartal::device
