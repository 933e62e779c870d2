// The seam to the memory of GPUs: slabs, each made, scrubbed and released as a whole, off the engine loop.
// GpuSlabMemory (gpu_slab_memory.h) is the real one; tests/support/fake_slab_memory.h the one a test pumps by hand.
// Both pass tests/contract. Confined to the engine loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/units.h"

namespace kvartal::device {

inline constexpr uint64_t kSlabAlignBytes = 2 * kMiB;  // what the driver allocates in, on all GPUs there are
inline constexpr size_t kSlabQueueMax = 256;           // creates and scrubs under way; each may be of a GiB
inline constexpr size_t kSlabsMax = 16384;             // of a node: each is a descriptor, and a place to be released in

// One allocation of one GPU. Its end lets go of it, off the engine loop; the bytes are free for others when no process
// has a descriptor or a mapping of it either.
class Slab {
 public:
  virtual ~Slab() = default;
  virtual int gpu() const = 0;
  virtual uint64_t bytes() const = 0;
  // A descriptor to be sent. Whoever has it reaches all of the slab, and cannot be made to let go.
  virtual absl::StatusOr<UniqueFd> Export() const = 0;
};

class SlabMemory {
 public:
  using CreateDone = absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<Slab>>)>;
  using ScrubDone = absl::AnyInvocable<void(absl::Status)>;
  virtual ~SlabMemory() = default;

  // `done` runs on the engine loop, after the call has returned, also when this object or the slab is gone by then.
  // ResourceExhausted at once when kSlabQueueMax requests are under way (or kSlabsMax slabs are there): then `done` is
  // never run.

  // `bytes`: a multiple of kSlabAlignBytes. What the memory holds at first is anybody's. ResourceExhausted: the GPU has
  // no such piece free. A slab that ended before the call is out of the way.
  [[nodiscard]] virtual absl::Status Create(int gpu, uint64_t bytes, CreateDone done) = 0;
  // OK: all of it was zeros. Else nothing is known of its bytes.
  [[nodiscard]] virtual absl::Status Scrub(const Slab& slab, ScrubDone done) = 0;
};

}  // namespace kvartal::device
