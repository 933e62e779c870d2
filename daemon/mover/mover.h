// What kvartal-mover does: copies between the slabs of one GPU and arenas, as its daemon asks over a socket.
// Confined to one thread.
// Invariants: every request is answered once, when nothing of it touches memory any more; each range is checked against
// memory that is mapped here, whatever the daemon said. Any error of the driver on the way ends it: the daemon starts
// another.
// Known limit: arenas are not registered with the driver (cuMemHostRegister), so that it copies through pinned memory
// of its own, while this thread waits. Registered pages would survive the daemon's punch of an extent, and their bytes
// with them; to undo it first would take a word with each punch.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/mapping.h"
#include "daemon/device/gpu_driver.h"
#include "daemon/device/gpu_stream.h"
#include "daemon/device/memory_table.h"
#include "daemon/mover/copy_queue.h"
#include "daemon/mover/daemon_channel.h"

namespace kvartal::mover {

class Mover {
 public:
  // `channel` must outlive it. An error: the driver, the GPU or its memory does not allow it.
  static absl::StatusOr<std::unique_ptr<Mover>> Open(const std::string& library, const std::string& gpu_uuid,
                                                     DaemonChannel* channel);
  // OK when the daemon is gone. Aborted: the context is lost.
  absl::Status Run();

 private:
  template <typename Mapped>
  struct Held {
    absl::StatusOr<Mapped> mapped;  // or why it is of no use
    uint32_t uses = 0;              // copies that are not over
    uint64_t forget = 0;            // the operation that waits for the last of them
  };
  template <typename Mapped>
  using Table = device::MemoryTable<Held<Mapped>>;
  struct OnGpu {
    device::GpuEvent event;
    Chunk chunk;
  };
  struct Stream {
    device::GpuStream stream;
    std::deque<OnGpu> on_gpu;  // oldest first
  };
  struct Direction {
    CopyQueue queue;
    std::vector<Stream> streams;  // by priority
    size_t chunks_on_gpu = 0;
    uint64_t bytes_on_gpu = 0;
  };

  Mover(std::unique_ptr<device::GpuDriver> driver, int ordinal, device::GpuContext context, DaemonChannel* channel);
  absl::Status OpenStreams();

  absl::Status TakeRequests();
  absl::Status Take(const device::MoverRequest& request, const UniqueFd& fd);
  absl::StatusOr<device::GpuMapping> MapSlab(const UniqueFd& fd, uint64_t bytes) const;
  template <typename Mapped>
  absl::Status Add(Table<Mapped>* table, uint64_t id, const device::MoverRequest& request,
                   absl::StatusOr<Mapped> mapped);
  absl::Status QueueCopy(const device::MoverRequest& request);
  absl::Status QueueScrub(const device::MoverRequest& request);
  absl::Status MayQueue() const;
  template <typename Mapped>
  void Forget(Table<Mapped>* table, uint64_t id, uint64_t operation);
  template <typename Mapped>
  void EndUse(Table<Mapped>* table, uint64_t id);

  absl::Status GiveToGpu(Direction* direction);
  absl::Status TakeFromGpu(Direction* direction);

  Direction& to_gpu() { return directions_[0]; }
  Direction& to_host() { return directions_[1]; }

  const std::unique_ptr<device::GpuDriver> driver_;
  const int ordinal_;
  const device::GpuContext context_;
  DaemonChannel* const channel_;
  Table<device::GpuMapping> slabs_{"slab"};
  Table<Mapping> arenas_{"arena"};
  std::array<Direction, 2> directions_;  // the last members: copies under way use the others
  size_t copies_ = 0;                    // not over
};

}  // namespace kvartal::mover
