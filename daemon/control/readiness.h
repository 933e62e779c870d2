// Tells whoever started the daemon that it serves: a byte on an inherited descriptor, READY=1 to the service
// supervisor. Any thread, once.
#pragma once

#include <string>
#include <string_view>

#include "daemon/base/status.h"

namespace kvartal::control {

// Writes one byte to `fd` and closes it.
absl::Status SignalReadyFd(int fd);
// Sends `state` ("READY=1", "STOPPING=1") to the datagram socket `address` names, a path or an abstract name that
// begins with
// '@': the sd_notify protocol. OK and nothing done when `address` is null or empty.
absl::Status NotifySupervisor(const char* address, std::string_view state);

}  // namespace kvartal::control
