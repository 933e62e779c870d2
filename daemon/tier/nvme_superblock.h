// Opening a device: finds out whether a file is ours, makes it ours when it is new, and leaves its superblock raised.
// Pure but for the file it is given; start-up only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "daemon/device/block_file.h"
#include "daemon/tier/nvme_format.h"

namespace kvartal::tier {

// Reads both copies of the superblock, takes the newest that is undamaged, and writes it back with `open_count` raised:
// one copy, a sync, then the other, so that a crash in between leaves one to read. A file of zeros gets a new
// superblock, as does one whose copies are both damaged beyond use (it was a cache; the blocks in it are unreachable
// from then on). FailedPrecondition: another format version, or a file that is not ours. InvalidArgument: too small.
// Unavailable: the device.
absl::StatusOr<Superblock> OpenSuperblock(device::BlockFile* file);

// Whether a file that begins so may be made ours, or is already. FailedPrecondition: as above. REQUIRES:
// kNvmeForeignProbeBytes.
absl::Status JudgeFront(std::span<const std::byte> front);

std::string DeviceIdOf(const Superblock& superblock);  // lower-case hex of the uuid

}  // namespace kvartal::tier
