#include "daemon/device/uring.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::device {
namespace {

constexpr unsigned kProbeEntries = 4;

std::string DisabledSetting() {
  std::ifstream file("/proc/sys/kernel/io_uring_disabled");
  return std::string(absl::StripAsciiWhitespace(std::string(std::istreambuf_iterator<char>(file), {})));
}

// The length of the one completion of the one request in `ring`, or a negated errno.
int RunOne(io_uring* ring) {
  int result = 0;
  do {
    result = io_uring_submit_and_wait(ring, 1);
  } while (result == -EINTR);
  // The kernel has not taken the request, so the page is still ours.
  if (result < 0) KV_CHECK(io_uring_sq_ready(ring) > 0);
  if (result < 0) return result;
  io_uring_cqe* cqe = nullptr;
  if (const int error = io_uring_peek_cqe(ring, &cqe); error != 0) return error;
  const int moved = cqe->res;
  io_uring_cqe_seen(ring, cqe);
  return moved;
}

}  // namespace

std::string WhyNoRing(int error, std::string_view disabled) {
  switch (error) {
    case ENOSYS:
      return "this kernel has no io_uring: Linux 5.11 or newer has what is needed";
    case EPERM:
    case EACCES:
      if (disabled == "1" || disabled == "2") {
        return absl::StrCat("kernel.io_uring_disabled is ", std::string(disabled),
                            ": sysctl kernel.io_uring_disabled=0 allows it");
      }
      return "io_uring is denied to this process: let the container's seccomp profile pass io_uring_setup, "
             "io_uring_enter and io_uring_register";
    case ENOMEM:
      return "no memory for a ring, which kernels count as locked: raise the memlock limit (ulimit -l, "
             "LimitMEMLOCK)";
    default:
      return absl::StrCat("io_uring does not work here: ", std::strerror(error));
  }
}

absl::StatusOr<Ring> MakeRing(unsigned entries, RingInit init) {
  // The single issuer is whoever enables the ring.
  constexpr std::array<unsigned, 3> kFlags = {
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED, IORING_SETUP_COOP_TASKRUN, 0};
  int error = 0;
  for (const unsigned flags : kFlags) {
    auto ring = std::make_unique<io_uring>();
    error = -init(entries, ring.get(), flags);
    if (error == 0) {
      Ring made(ring.release());
      // Without it a wait with a deadline leaves completions of its own among ours.
      if ((made->features & IORING_FEAT_EXT_ARG) == 0) error = ENOSYS;
      if (error == 0) return made;
      break;
    }
    if (error != EINVAL) break;
  }
  return absl::UnimplementedError(WhyNoRing(error, DisabledSetting()));
}

absl::Status EnableRing(io_uring* ring) {
  if ((ring->flags & IORING_SETUP_R_DISABLED) == 0) return absl::OkStatus();
  // The shared library of Debian 12 does not export io_uring_enable_rings.
  const int result = io_uring_register(ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  return result == 0 ? absl::OkStatus() : absl::UnimplementedError(WhyNoRing(-result, DisabledSetting()));
}

absl::Status ProbeUring(int fd) {
  KV_ASSIGN_OR_RETURN(const Ring ring, MakeRing(kProbeEntries));
  KV_RETURN_IF_ERROR(EnableRing(ring.get()));
  alignas(kSlotAlignBytes) std::byte page[kSlotAlignBytes];
  iovec part = {page, sizeof(page)};
  io_uring_sqe* const sqe = io_uring_get_sqe(ring.get());
  if (fd >= 0) {
    io_uring_prep_readv(sqe, fd, &part, 1, 0);
  } else {
    io_uring_prep_nop(sqe);
  }
  const int moved = RunOne(ring.get());
  if (moved < 0) return absl::UnimplementedError(WhyNoRing(-moved, DisabledSetting()));
  if (fd >= 0 && moved != static_cast<int>(sizeof(page))) {
    return absl::UnimplementedError(
        absl::StrCat("a read of ", sizeof(page), " bytes through io_uring brought ", moved));
  }
  return absl::OkStatus();
}

}  // namespace kvartal::device
