#include "tools/kvartal-bench/stream_ceiling.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/device/uring.h"

namespace kvartal::bench {
namespace {

// How many ended; an error of any of them ends the run.
absl::StatusOr<uint64_t> Reap(io_uring* ring, uint64_t expected_bytes) {
  io_uring_cqe* cqe = nullptr;
  if (const int error = io_uring_wait_cqe(ring, &cqe); error != 0) return absl::ErrnoToStatus(-error, "io_uring");
  unsigned head;
  unsigned ended = 0;
  bool whole = true;
  io_uring_for_each_cqe(ring, head, cqe) {
    whole = whole && cqe->res == static_cast<int>(expected_bytes);
    ++ended;
  }
  io_uring_cq_advance(ring, ended);
  if (!whole) return absl::InternalError("a write of the ceiling failed or was short");
  return ended;
}

}  // namespace

absl::StatusOr<StreamCeiling> StreamCeiling::Create(uint64_t bytes) {
  UniqueFd fd(::memfd_create("kvartal-ceiling", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return absl::ErrnoToStatus(errno, "memory for the ceiling of the disk");
  }
  KV_ASSIGN_OR_RETURN(Mapping memory, Mapping::Shared(fd.get(), bytes, PROT_READ | PROT_WRITE));
  std::memset(memory.data(), 1, bytes);
  return StreamCeiling(std::move(fd), std::move(memory));
}

absl::StatusOr<double> StreamCeiling::Write(const FioJob& job) const {
  const UniqueFd file(::open(job.path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!file.valid()) return absl::ErrnoToStatus(errno, job.path);
  const auto depth = static_cast<uint64_t>(job.depth);
  KV_ASSIGN_OR_RETURN(const device::Ring ring, device::MakeRing(static_cast<unsigned>(depth)));
  KV_RETURN_IF_ERROR(device::EnableRing(ring.get()));
  const uint64_t count = std::min(job.total_bytes, memory_.size()) / job.io_bytes;
  std::vector<iovec> parts(count);
  const SystemClock clock;
  const int64_t start_ns = clock.MonotonicNs();
  for (uint64_t sent = 0, ended = 0; ended < count;) {
    if (sent < count && sent - ended < depth) {
      parts[sent] = {memory_.data() + sent * job.io_bytes, job.io_bytes};
      io_uring_sqe* const sqe = io_uring_get_sqe(ring.get());
      io_uring_prep_writev(sqe, file.get(), &parts[sent], 1, job.offset_bytes + sent * job.io_bytes);
      if (io_uring_submit(ring.get()) != 1) return absl::InternalError("io_uring takes no more");
      ++sent;
      continue;
    }
    KV_ASSIGN_OR_RETURN(const uint64_t reaped, Reap(ring.get(), job.io_bytes));
    ended += reaped;
  }
  return static_cast<double>(count * job.io_bytes) * 1e9 / static_cast<double>(clock.MonotonicNs() - start_ns);
}

}  // namespace kvartal::bench
