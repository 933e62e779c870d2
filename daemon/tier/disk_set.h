// Which disks of a node are meant, by their place in the tier: a word that catalog, tier and engine share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/base/limits.h"

namespace kvartal::tier {

using DiskSet = uint32_t;  // a bit a disk
inline constexpr DiskSet kNoDisk = 0;
inline constexpr DiskSet kAllDisks = UINT32_MAX;
inline constexpr DiskSet SetOfDisk(size_t disk) { return DiskSet{1} << disk; }
static_assert(kDisksMax <= 32);

}  // namespace kvartal::tier
