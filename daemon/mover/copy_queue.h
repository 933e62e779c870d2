// What the mover does next in one direction: copies (and scrubs, which write to the GPU) that wait, in two priorities,
// cut into chunks and, where one goes on where the last has ended, put together.
// Confined to the mover's thread. Pure: it touches no memory.
// Invariants: chunks of one priority come in the order of their copies; demand comes first, but for every
// kMoverDemandRun chunks of it background, if any waits, has one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "daemon/device/gpu_stream.h"

namespace kvartal::mover {

// `host` is null for a scrub.
struct Copy {
  uint64_t operation = 0;
  uint64_t slab = 0, arena = 0;
  device::DeviceAddress gpu = 0;
  std::byte* host = nullptr;
  uint64_t bytes = 0;
};

struct Chunk {
  device::GpuPriority priority = device::GpuPriority::kDemand;
  device::DeviceAddress gpu = 0;
  std::byte* host = nullptr;
  uint64_t bytes = 0;
  std::vector<Copy> ended;  // copies that are over when this chunk is
};

class CopyQueue {
 public:
  void Push(const Copy& copy, device::GpuPriority priority);
  // nullopt: nothing waits.
  std::optional<Chunk> Next();

 private:
  struct Waiting {
    Copy copy;
    uint64_t taken = 0;  // bytes of it that are in chunks
  };
  using Line = std::deque<Waiting>;
  static void TakeFromFront(Line* line, Chunk* chunk);
  static bool GoesOn(const Line& line, const Chunk& chunk);

  std::array<Line, 2> lines_;  // by priority
  uint32_t demand_run_ = 0;    // chunks of demand since background had one, while it waits
};

}  // namespace kvartal::mover
