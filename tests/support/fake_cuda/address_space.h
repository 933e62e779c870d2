// Device addresses of one process: reserved, mapped to allocations, given rights for each GPU. The host cannot touch
// them; only Use can, at the second place where the bytes are mapped. The end of the process unmaps them.
// Any thread: Unmap waits for what is under way, as the driver's does.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <shared_mutex>

#include "tests/support/fake_cuda/gpu_node.h"

namespace kvartal::fake_cuda {

class AddressSpace {
 public:
  CUresult Reserve(uint64_t bytes, uint64_t* address);
  CUresult Free(uint64_t address, uint64_t bytes);
  CUresult Map(uint64_t address, uint64_t bytes, const Allocation& allocation);
  CUresult Unmap(uint64_t address, uint64_t bytes);
  CUresult SetAccess(uint64_t address, uint64_t bytes, int gpu, CUmemAccess_flags flags);

  // Runs `use` with where the bytes are, when `gpu` may reach all of them so; else CUDA_ERROR_ILLEGAL_ADDRESS.
  CUresult Use(uint64_t address, uint64_t bytes, int gpu, CUmemAccess_flags wanted,
               const std::function<void(std::byte*)>& use);
  // The same for a copy from one range to another, which may overlap.
  CUresult Copy(uint64_t to, uint64_t from, uint64_t bytes, int gpu);

 private:
  struct Reservation {
    uint64_t bytes = 0;
    std::byte* alias = nullptr;  // as many bytes, where the library reaches them
  };
  struct Mapping {
    uint64_t bytes = 0;
    std::map<int, CUmemAccess_flags> access;  // by GPU
  };
  // The reservation that [address, address + bytes) lies in; end() for none.
  std::map<uint64_t, Reservation>::iterator Around(uint64_t address, uint64_t bytes);
  // Whether the range is mappings side by side, none of them in part.
  bool WholeMappings(uint64_t address, uint64_t bytes) const;
  // Where the library reaches the range; nullptr when `gpu` may not reach all of it so.
  std::byte* Reach(uint64_t address, uint64_t bytes, int gpu, CUmemAccess_flags wanted);

  std::shared_mutex mutex_;
  std::map<uint64_t, Reservation> reservations_;
  std::map<uint64_t, Mapping> mappings_;
};

}  // namespace kvartal::fake_cuda
