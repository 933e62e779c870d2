// The real host memory: what host_memory.h promises, from memfds. This header is for tests and the doctor; the daemon
// asks NewMemfdMemory.
#pragma once

#include <string_view>

namespace kvartal::device {

// Whether the text of /sys/kernel/mm/transparent_hugepage/shmem_enabled ("always within_size [advise] never deny
// force") gives huge pages to a mapping that asked for them by madvise. Pure.
bool ShmemHugePagesEnabled(std::string_view shmem_enabled);

// Whether the system has swap, by the text of /proc/swaps, and lets this process' control group use it, by that of
// memory.swap.max ("" where there is no such file). Pure.
bool SystemSwaps(std::string_view swaps, std::string_view swap_max);

}  // namespace kvartal::device
