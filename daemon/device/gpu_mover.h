// The seam to what copies between the memory of one GPU and arenas, and zeroes it. That is a process of its own, since
// it needs a CUDA context, and whoever has one may hang with its GPU or be lost with it. MoverProcess is the real one,
// tests/support/fake_mover.h the one a test pumps by hand; both pass tests/gpu/mover_contract_test.cc.
// Confined to the engine loop.
// Invariants: a `done` whose call returned OK runs exactly once, on the loop, after the call has returned, and nothing
// of its operation touches the memory any more, whatever became of the mover. An error of a call itself is a refusal
// at once: its `done` never runs.
#pragma once

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "daemon/base/ids.h"
#include "daemon/base/status.h"
#include "daemon/device/gpu_mover_stats.h"
#include "daemon/device/gpu_stream.h"
#include "daemon/device/mover_limits.h"

namespace kvartal::device {

using SlabId = StrongId<struct SlabTag, uint64_t>;    // memory of the GPU: one GpuMemory
using ArenaId = StrongId<struct ArenaTag, uint64_t>;  // a memfd that cannot shrink (F_SEAL_SHRINK)

enum class GpuCopyDirection : uint8_t { kToGpu, kToHost };

// `bytes` from here to there, at any offsets. Operations under way are done in no order.
struct GpuCopy {
  SlabId slab;
  uint64_t slab_offset = 0;
  ArenaId arena;
  uint64_t arena_offset = 0;  // present, of an extent that is not punched before the end
  uint64_t bytes = 0;
  GpuCopyDirection direction = GpuCopyDirection::kToGpu;
  GpuPriority priority = GpuPriority::kDemand;  // background has a tenth while demand waits
  // When in that direction nothing has ended for so long, the GPU hangs: the mover is started anew, and this ends with
  // DeadlineExceeded. A queue that moves on, however slowly, does not.
  int64_t deadline_ms = kMoverCallMs;
};

class GpuMover {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  virtual ~GpuMover() = default;

  // False while there is no process that answers: then operations are refused with Unavailable and why. What it was
  // told of is remembered.
  virtual bool ready() const = 0;

  // Tells it of memory, under an id that it does not know. It keeps a descriptor of its own until it has forgotten.
  // What cannot be imported or mapped is told by the operations on it.
  [[nodiscard]] virtual absl::Status AddSlab(SlabId id, int fd, uint64_t bytes) = 0;
  [[nodiscard]] virtual absl::Status AddArena(ArenaId id, int fd, uint64_t bytes) = 0;
  // No new operation on it from now on; `done`, with OK, when those under way are over and nothing holds the memory or
  // a descriptor of it for the mover any more. Never refused for want of a process.
  [[nodiscard]] virtual absl::Status ForgetSlab(SlabId id, Done done) = 0;
  [[nodiscard]] virtual absl::Status ForgetArena(ArenaId id, Done done) = 0;

  // ResourceExhausted: kMoverOperationsMax are under way. NotFound: an id it was not told of, or is to forget.
  // OutOfRange: not within both.
  [[nodiscard]] virtual absl::Status Copy(const GpuCopy& copy, Done done) = 0;
  // Zeroes all of it, in the background.
  [[nodiscard]] virtual absl::Status Scrub(SlabId slab, Done done) = 0;

  virtual const GpuMoverStats& stats() const = 0;
};

}  // namespace kvartal::device
