// The real GpuMover: kvartal-mover as a process of the daemon's, started again whenever it ends or hangs, and told anew
// of all slabs and arenas. The daemon keeps their descriptors, so that the end of a mover loses nothing.
// Confined to the engine loop.
// Invariants: at most one process at a time: the next begins when the last is no more, which is also when what was
// under way at it ends. A process that cannot even be killed (stuck in its driver) so keeps its operations; the memory
// they are on is not safe to use.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/device/gpu_mover.h"
#include "daemon/device/memory_table.h"
#include "daemon/device/mover_child.h"
#include "daemon/device/mover_limits.h"

namespace kvartal::device {

struct MoverOptions {
  std::string executable;                // kvartal-mover
  std::string library = "libcuda.so.1";  // the driver's, or one that simulates GPUs
  std::string gpu_uuid;                  // "GPU-..."
  int64_t start_ms = kMoverStartMs;
  int64_t call_ms = kMoverCallMs;
  int64_t backoff_min_ms = kMoverBackoffMinMs;
  int64_t backoff_max_ms = kMoverBackoffMaxMs;
};

class MoverProcess : public GpuMover {
 public:
  // Starts it; ready() follows. An error: the executable cannot be run at all. `loop` and `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<MoverProcess>> Start(MoverOptions options, EventLoop* loop, const Clock* clock);
  // Kills the process and waits for its end; copies under way end with Cancelled. Not from within a Done.
  ~MoverProcess() override;

  bool ready() const override { return told_hello_ && !killed_; }
  absl::Status AddSlab(SlabId id, int fd, uint64_t bytes) override;
  absl::Status AddArena(ArenaId id, int fd, uint64_t bytes) override;
  absl::Status ForgetSlab(SlabId id, Done done) override;
  absl::Status ForgetArena(ArenaId id, Done done) override;
  absl::Status Copy(const GpuCopy& copy, Done done) override;
  absl::Status Scrub(SlabId slab, Done done) override;
  const GpuMoverStats& stats() const override { return stats_; }

  pid_t pid() const { return child_.has_value() ? child_->pid() : 0; }  // 0: none at the moment
  // Why the last process ended, or could not begin; "" when none has.
  const std::string& last_end() const { return last_end_; }
  bool simulated() const { return simulated_; }  // no GPU is behind it, as the process said

 private:
  using Memories = MemoryTable<UniqueFd>;
  struct Operation {
    MoverRequest request;
    Done done;  // empty: of an Add
    int64_t began_ns = 0;
    int64_t deadline_ms = 0;
    bool overdue = false;
  };

  MoverProcess(MoverOptions options, EventLoop* loop, const Clock* clock);

  // What is asked for. Submit wants a process that answers, Accept only room.
  absl::Status Add(Memories* memories, MoverVerb verb, uint64_t id, int fd, uint64_t bytes);
  absl::Status Forget(Memories* memories, MoverVerb verb, uint64_t id, Done done);
  absl::Status Submit(const MoverRequest& request, int64_t deadline_ms, Done done);
  absl::Status Accept(MoverRequest request, int64_t deadline_ms, Done done);
  absl::Status CountRefusal(absl::Status status);

  // The life of a process.
  absl::Status Begin();
  void BeginLater();
  void OnHello(const MoverHello& hello);
  void Kill(std::string why);
  void OnGone();
  void ArmTick();
  void OnTick();
  // When something of its kind last ended.
  int64_t& HeardNs(MoverVerb verb);

  // What passes over the socket.
  void Say(const MoverRequest& request);
  void Flush();
  void WatchSocket(uint32_t events);
  void OnSocket(uint32_t events);
  bool Hear();  // one packet; false: there is none
  void OnPacket(std::span<const std::byte> packet);
  void OnAnswer(const MoverAnswer& answer);
  void Erase(const MoverRequest& request);  // the memory that it forgets
  void End(Operation operation, absl::Status status);

  const MoverOptions options_;
  EventLoop* const loop_;
  const Clock* const clock_;
  GpuMoverStats stats_;
  Memories slabs_{"slab"}, arenas_{"arena"};

  std::optional<MoverChild> child_;
  bool told_hello_ = false;  // by this process: it may hold memory
  bool killed_ = false;      // it is to be no more
  bool simulated_ = false;
  int64_t began_ns_ = 0;
  std::string why_;  // this process ends, as far as is known
  std::string last_end_;
  int64_t backoff_ms_ = 0;
  EventLoop::TimerId tick_timer_ = 0, begin_timer_ = 0;  // 0: none

  uint64_t last_operation_ = 0;
  std::map<uint64_t, Operation> operations_;  // under way
  std::deque<MoverRequest> outbox_;           // of those, and of Adds, not yet sent
  size_t unacked_fds_ = 0;                    // Adds among operations_
  std::array<int64_t, 3> heard_ns_{};
};

}  // namespace kvartal::device
