// Opening the file or raw device of the NVMe tier: found or made, locked, in full size, O_DIRECT where it works.
// On the calling thread, at start-up.
// Invariant: a failure leaves the disk as it was: a file made here is removed, a grown one is cut back.
#pragma once

#include "absl/functional/function_ref.h"
#include "daemon/base/status.h"
#include "daemon/device/block_file.h"
#include "daemon/device/disk_file.h"

namespace kvartal::device {

// FailedPrecondition: another daemon has it, or something else the device. One that was killed has it a little longer
// than it lives, since its io_uring lets go of a file when the last transfer has ended: so it is tried kDiskOpenTries
// times, with `pause` between two.
inline constexpr int kDiskOpenTries = 100;
void PauseBetweenDiskOpens();
absl::StatusOr<DiskFile> SetUpBlockFile(const BlockFileOptions& options,
                                        absl::FunctionRef<void()> pause = PauseBetweenDiskOpens);

}  // namespace kvartal::device
