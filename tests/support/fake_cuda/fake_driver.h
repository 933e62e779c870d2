// The state of one process behind the entry points: made by cuInit, there until the process ends.
// Any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tests/support/fake_cuda/address_space.h"
#include "tests/support/fake_cuda/context.h"
#include "tests/support/fake_cuda/gpu_node.h"
#include "tests/support/fake_cuda/injection.h"
#include "tests/support/fake_cuda/settings.h"

namespace kvartal::fake_cuda {

class FakeDriver {
 public:
  explicit FakeDriver(Settings settings);

  const Settings& settings() const { return settings_; }
  const GpuNode& node() const { return node_; }
  AddressSpace& addresses() { return addresses_; }
  // The node's number of `ordinal`; -1: there is none.
  int GpuOf(int ordinal) const;
  bool Sees(int gpu) const;

  // Handles of allocations.
  uint64_t Keep(Allocation allocation);
  std::shared_ptr<const Allocation> Find(uint64_t handle) const;
  bool Release(uint64_t handle);

  CUresult RetainContext(int gpu, Context** context);
  CUresult ReleaseContext(int gpu);
  bool Knows(const Context* context) const;

 private:
  const Settings settings_;
  const GpuNode node_;
  AddressSpace addresses_;
  mutable std::mutex mutex_;
  uint64_t last_handle_ = 0;
  std::map<uint64_t, std::shared_ptr<const Allocation>> allocations_;
  std::map<int, std::unique_ptr<Context>> contexts_;  // by GPU
};

Injection& Injected();
// nullptr before cuInit.
FakeDriver* Driver();
CUresult StartDriver();

}  // namespace kvartal::fake_cuda
