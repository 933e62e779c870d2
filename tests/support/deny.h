// Makes this process poorer, for itself and what it starts: what containers do to a daemon. In a child, or on a thread
// of its own: there is no way back.
// Stateless.
#pragma once

#include <cstdint>
#include <vector>

namespace kvartal::testing {

// A seccomp filter on this thread, and on those it starts, that answers EPERM to the calls with these numbers.
void Deny(const std::vector<uint32_t>& calls);
// To those of io_uring.
void DenyIoUring();
// To every call but those with these numbers.
void AllowOnly(const std::vector<uint32_t>& calls);
// RLIMIT_MEMLOCK, and no capability to ignore it, in this thread or in a program it starts.
void LimitLockedMemory(uint64_t bytes);

}  // namespace kvartal::testing
