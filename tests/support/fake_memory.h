// Host memory that a test pumps by hand: arenas are plain sparse memfds; Populate and Punch take effect, in order, when
// the executor runs them, so every moment in between can be looked at. Confined to the thread that pumps the executor.
// Invariant: what counts as allocated is what a completed Populate (or TouchHole) made present and no Punch took away.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/base/event_loop.h"
#include "daemon/device/host_memory.h"

namespace kvartal::testing {

class FakeArena;

class FakeMemory : public device::HostMemory {
 public:
  struct Counts {
    uint64_t populates = 0, populated_bytes = 0;  // completed with OK
    uint64_t punches = 0, punched_bytes = 0;
    uint64_t failures = 0;
    size_t pending = 0;             // accepted, `done` not yet run
    uint64_t populating_bytes = 0;  // of those: what Populates ask for
  };

  explicit FakeMemory(Executor* executor);
  ~FakeMemory() override;

  absl::StatusOr<std::unique_ptr<device::Arena>> CreateArena(const char* name, uint64_t size_bytes) override;
  bool HugePages() const override;

  // The next `count` operations of that kind end with ResourceExhausted (Populate) or Internal (Punch) and change
  // nothing.
  void FailNextPopulates(int count);
  void FailNextPunches(int count);
  // While held nothing takes effect and no `done` runs; Release lets all of it run at the next pump.
  void Hold();
  void Release();
  // From now on at most `count` operations are under way; 0: kMemoryQueueMax.
  void SetQueueMax(size_t count);
  // CreateArena fails with ResourceExhausted while set.
  void FailCreate(bool fail);
  void SetHugePages(bool huge);
  Counts counts() const;

  // As a client that writes into memory nobody granted: the extents around [offset, offset + bytes) count as allocated.
  static void TouchHole(device::Arena* arena, uint64_t offset, uint64_t bytes);

 private:
  friend class FakeArena;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kvartal::testing
