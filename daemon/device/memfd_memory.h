// The real host memory: what host_memory.h promises, from memfds. This header is for tests and the doctor; the daemon
// asks NewMemfdMemory.
#pragma once

#include <string_view>

namespace kvartal::device {

// Whether the text of /sys/kernel/mm/transparent_hugepage/shmem_enabled ("always within_size [advise] never deny
// force") gives huge pages to a mapping that asked for them by madvise. Pure.
bool ShmemHugePagesEnabled(std::string_view shmem_enabled);

}  // namespace kvartal::device
