// The disk of a daemon that `kvartal-bench soak` starts: a real file behind tests/support/faulty_block_file.h.
#pragma once

#include <memory>

#include "daemon/base/event_loop.h"
#include "daemon/device/block_file.h"

namespace kvartal::testing {

// Chances as KVARTAL_DISK_FAULTS in the environment says: "seed=1,io_error=2,short=2,torn=8,flip=8,no_space=2,
// delayed=200", of ten thousand transfers each; nothing else is known and what is left out is 0. Transfers are
// reordered, too. At its end it says "disk faults: N of M transfers" on stderr.
std::unique_ptr<device::BlockFile> WithDiskFaults(std::unique_ptr<device::BlockFile> file, Executor* executor);

}  // namespace kvartal::testing
