// The memory of the node's GPUs, shared by all processes with the same folder: an allocation is a file in it, alive as
// long as any process holds a descriptor or a mapping of it (README.md says how).
// Any thread, any process.
// Invariant: what is held on one GPU never adds up to more than its memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/base/unique_fd.h"

namespace kvartal::fake_cuda {

constexpr uint64_t kGranularityBytes = uint64_t{2} << 20;

struct Allocation {
  UniqueFd fd;
  int gpu = 0;  // the node's number
  uint64_t bytes = 0;
  bool exportable = false;
};

class GpuNode {
 public:
  GpuNode(std::string dir, uint64_t memory_bytes) : dir_(std::move(dir)), memory_bytes_(memory_bytes) {}

  // CUDA_ERROR_OUT_OF_MEMORY where the GPU has not so much left.
  CUresult Allocate(int gpu, uint64_t bytes, bool exportable, Allocation* made) const;
  // What `fd`, from another process, is; nullopt for one that is no exportable allocation of this node.
  std::optional<Allocation> Import(int fd) const;

 private:
  // Bytes of `gpu` that anybody holds. Removes what nobody does. With the folder locked.
  uint64_t HeldBytes(int gpu) const;

  const std::string dir_;
  const uint64_t memory_bytes_;
};

}  // namespace kvartal::fake_cuda
