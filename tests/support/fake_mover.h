// A mover that a test pumps by hand: slabs are memfds, as arenas are; what is asked takes effect, demand first, when
// the executor runs it. Crash and Restart are the end of a process and the next one's first word.
// Confined to the thread that pumps the executor.
// Invariant: what Crash cut off has changed no byte.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

#include "daemon/base/event_loop.h"
#include "daemon/base/mapping.h"
#include "daemon/device/gpu_mover.h"
#include "daemon/device/memory_table.h"

namespace kvartal::testing {

class FakeMover : public device::GpuMover {
 public:
  explicit FakeMover(Executor* executor);
  // What is under way ends with Cancelled.
  ~FakeMover() override;

  bool ready() const override { return ready_; }
  absl::Status AddSlab(device::SlabId id, int fd, uint64_t bytes) override;
  absl::Status AddArena(device::ArenaId id, int fd, uint64_t bytes) override;
  absl::Status ForgetSlab(device::SlabId id, Done done) override;
  absl::Status ForgetArena(device::ArenaId id, Done done) override;
  absl::Status Copy(const device::GpuCopy& copy, Done done) override;
  absl::Status Scrub(device::SlabId slab, Done done) override;
  const device::GpuMoverStats& stats() const override { return stats_; }

  // A GPU that stands still: no copy and no scrub takes effect until Release.
  void Hold() { held_ = true; }
  void Release();
  // What is under way ends with Unavailable, and ready() is false until Restart.
  void Crash();
  void Restart();
  // The next `count` copies and scrubs end with Unavailable and change nothing.
  void FailNext(int count) { fail_next_ = count; }
  size_t under_way() const { return demand_.size() + background_.size() + forgets_.size(); }

 private:
  struct Held {
    Mapping mapping;
    size_t uses = 0;
  };
  using Memories = device::MemoryTable<Held>;
  struct Operation {
    std::function<void()> effect;
    Memories::Memory* slab = nullptr;
    Memories::Memory* arena = nullptr;  // nullptr: of a scrub
    uint64_t* counter = nullptr;        // of the bytes that it moves
    uint64_t bytes = 0;
    Done done;
  };
  struct Forgetting {
    Memories* memories = nullptr;
    uint64_t id = 0;
    Done done;
  };

  static absl::Status Add(Memories* memories, uint64_t id, int fd, uint64_t bytes);
  absl::Status Forget(Memories* memories, uint64_t id, Done done);
  absl::Status Submit(std::deque<Operation>* line, Operation operation);
  absl::Status Refuse(absl::Status why);
  void PostTurn();
  void RunTurn();
  bool RunOperation();
  bool RunForget();
  void EndAll(const absl::Status& status);

  Executor* const executor_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // false for turns that outlive this
  device::GpuMoverStats stats_;
  Memories slabs_{"slab"}, arenas_{"arena"};
  std::deque<Operation> demand_, background_;
  std::deque<Forgetting> forgets_;
  bool ready_ = true;
  bool held_ = false;
  int fail_next_ = 0;
};

}  // namespace kvartal::testing
