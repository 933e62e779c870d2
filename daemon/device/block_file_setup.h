// Opening the file or raw device of the NVMe tier: found or made, locked, in full size, O_DIRECT where it works.
// On the calling thread, at start-up.
// Invariant: a failure leaves the disk as it was: a file made here is removed, a grown one is cut back.
#pragma once

#include "daemon/base/status.h"
#include "daemon/device/block_file.h"
#include "daemon/device/disk_file.h"

namespace kvartal::device {

absl::StatusOr<DiskFile> SetUpBlockFile(const BlockFileOptions& options);

}  // namespace kvartal::device
