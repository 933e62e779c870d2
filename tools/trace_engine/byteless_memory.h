// Host memory of a virtual node: arenas are reserved addresses that nobody may touch; only the generation counters are
// real. Populate and Punch end at once, in virtual time.
// Confined to the thread of the node.
// Invariant: a read or write of a payload is a crash, never a silent zero: whoever needs bytes is not for this memory.
#pragma once

#include <memory>

#include "daemon/base/event_loop.h"
#include "daemon/device/host_memory.h"

namespace kvartal::trace_engine {

class BytelessMemory : public device::HostMemory {
 public:
  explicit BytelessMemory(Executor* executor) : executor_(executor) {}

  absl::StatusOr<std::unique_ptr<device::Arena>> CreateArena(const char* name, uint64_t size_bytes) override;
  bool HugePages() const override { return true; }

 private:
  Executor* const executor_;
};

}  // namespace kvartal::trace_engine
