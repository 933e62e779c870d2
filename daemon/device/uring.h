// Making an io_uring, and finding out whether this process may have one that reads the disk. The one place besides
// DiskRing that includes liburing.
// Stateless; a Ring belongs to one thread.
#pragma once

#include <liburing.h>

#include <memory>
#include <string>
#include <string_view>

#include "daemon/base/status.h"

namespace kvartal::device {

struct RingExit {
  void operator()(io_uring* ring) const {
    io_uring_queue_exit(ring);
    delete ring;
  }
};
using Ring = std::unique_ptr<io_uring, RingExit>;

// With a single issuer, whoever calls EnableRing before anything else, and completions run when it asks for them, or
// with fewer flags where the kernel knows fewer. Unimplemented, with the reason and what would help.
// `init` is the kernel's part: a test stands in for one that knows fewer flags.
using RingInit = int (*)(unsigned entries, io_uring* ring, unsigned flags);
absl::StatusOr<Ring> MakeRing(unsigned entries, RingInit init = io_uring_queue_init);
// On the thread that is to own it. Unimplemented, as above.
absl::Status EnableRing(io_uring* ring);

// Makes a ring as the disk threads have it and reads the first page of `fd` through it. -1: no file, the ring does
// nothing once.
absl::Status ProbeUring(int fd);

// Why io_uring_setup failed with `error`, and what would help. `disabled` is what kernel.io_uring_disabled says, "" for
// a kernel without it. Pure.
std::string WhyNoRing(int error, std::string_view disabled);

}  // namespace kvartal::device
