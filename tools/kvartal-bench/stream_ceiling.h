// The other ceiling of the disk: what it takes when each transfer comes from memory of its own, as a cache's does. fio
// writes from the few buffers that are under way, over and over, and those stay in the processor's cache.
// Confined to the thread that uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "daemon/base/mapping.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "tools/kvartal-bench/fio_run.h"

namespace kvartal::bench {

class StreamCeiling {
 public:
  // Memory for a run of `bytes`, all of it present.
  static absl::StatusOr<StreamCeiling> Create(uint64_t bytes);
  // Bytes a second of O_DIRECT writes through one ring, nothing hashed. `job.engine` does not matter.
  absl::StatusOr<double> Write(const FioJob& job) const;

  std::span<const std::byte> memory() const { return {memory_.data(), memory_.size()}; }

 private:
  StreamCeiling(UniqueFd fd, Mapping memory) : fd_(std::move(fd)), memory_(std::move(memory)) {}

  UniqueFd fd_;
  Mapping memory_;
};

}  // namespace kvartal::bench
