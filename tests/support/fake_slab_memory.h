// Memory of GPUs that a test pumps by hand: slabs are sparse memfds; Create and Scrub take effect, in order, when the
// executor runs them. Confined to the thread that pumps the executor.
// Invariant: a slab is dirty from its beginning, and from every Export on, until a Scrub that ends with OK.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/base/event_loop.h"
#include "daemon/device/slab_memory.h"

namespace kvartal::testing {

class FakeSlabMemory : public device::SlabMemory {
 public:
  struct Counts {
    uint64_t creates = 0, scrubs = 0;         // ended with OK
    uint64_t exports = 0, dirty_exports = 0;  // of a slab nobody had zeroed
    uint64_t dirty_releases = 0;              // of a slab that was exported and not zeroed since
    size_t pending = 0;                       // accepted, `done` not yet run
  };

  // As many GPUs as a test asks for, of `gpu_bytes` each.
  explicit FakeSlabMemory(Executor* executor, uint64_t gpu_bytes = kTiB);
  ~FakeSlabMemory() override;

  absl::Status Create(int gpu, uint64_t bytes, CreateDone done) override;
  absl::Status Scrub(const device::Slab& slab, ScrubDone done) override;

  // The next `count` requests of that kind end with ResourceExhausted (Create) or Unavailable (Scrub).
  void FailNextCreates(int count);
  void FailNextScrubs(int count);
  // While held nothing takes effect and no `done` runs; Resume lets all of it run at the next pump.
  void Hold();
  void Resume();
  // From now on at most `count` requests are under way; 0: kSlabQueueMax.
  void SetQueueMax(size_t count);

  Counts counts() const;
  uint64_t live_bytes(int gpu) const;  // of slabs that have not ended

 private:
  struct State;
  class FakeSlab;
  std::shared_ptr<State> state_;
};

}  // namespace kvartal::testing
