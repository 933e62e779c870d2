// The real memory of GPUs: what slab_memory.h promises, from the CUDA driver, on a thread of its own.
// Confined to the engine loop. It has no CUDA context, so that zeros are written by somebody else, who is passed in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "daemon/base/event_loop.h"
#include "daemon/device/gpu_driver.h"
#include "daemon/device/slab_memory.h"

namespace kvartal::device {

// Overwrites the slab behind `fd` with zeros, then lets go of it, then calls `done`: once, from any thread. OK: every
// byte was zero.
using SlabScrubber = std::function<void(const GpuInfo& gpu, UniqueFd fd, uint64_t bytes, SlabMemory::ScrubDone done)>;

// `driver` and `executor`, where callbacks are posted, must outlive it and its slabs.
std::unique_ptr<SlabMemory> NewGpuSlabMemory(const GpuDriver* driver, Executor* executor, SlabScrubber scrubber);

}  // namespace kvartal::device
