#include "daemon/device/gpu_slab_memory.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/worker_pool.h"

namespace kvartal::device {
namespace {

// What the driver gave. The descriptor is made at once: Export then asks only the kernel.
struct Allocation {
  GpuMemory memory;
  UniqueFd fd;
};

// The thread that calls the driver, and the bounds of what it is asked. Confined to the engine loop, except MakeOne.
// Invariant: every slab has a place in the queue for its release, which is never refused.
struct DriverThread {
  explicit DriverThread(const GpuDriver* gpu_driver) : driver(gpu_driver) {}

  absl::StatusOr<Allocation> MakeOne(int gpu, uint64_t bytes) const {
    KV_ASSIGN_OR_RETURN(GpuMemory memory, driver->Allocate(gpu, bytes));
    KV_ASSIGN_OR_RETURN(UniqueFd fd, memory.Export());
    return Allocation{std::move(memory), std::move(fd)};
  }

  const GpuDriver* const driver;
  size_t slabs = 0;  // those on their way included
  WorkerPool pool{"slabs", 1, kSlabsMax + kSlabQueueMax};
};

class GpuSlab : public Slab {
 public:
  GpuSlab(std::shared_ptr<DriverThread> thread, int gpu, Allocation allocation)
      : thread_(std::move(thread)), gpu_(gpu), allocation_(std::move(allocation)) {}
  ~GpuSlab() override {
    --thread_->slabs;
    KV_CHECK(thread_->pool.TrySubmit([allocation = std::move(allocation_)] {}));
  }

  int gpu() const override { return gpu_; }
  uint64_t bytes() const override { return allocation_.memory.bytes(); }
  absl::StatusOr<UniqueFd> Export() const override {
    UniqueFd fd(::fcntl(allocation_.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!fd.valid()) return absl::ErrnoToStatus(errno, "duplicating the descriptor of GPU memory");
    return fd;
  }

 private:
  const std::shared_ptr<DriverThread> thread_;
  const int gpu_;
  Allocation allocation_;
};

class GpuSlabMemory : public SlabMemory {
 public:
  GpuSlabMemory(const GpuDriver* driver, Executor* executor, SlabScrubber scrubber)
      : executor_(executor), scrubber_(std::move(scrubber)), thread_(std::make_shared<DriverThread>(driver)) {}

  absl::Status Create(int gpu, uint64_t bytes, CreateDone done) override {
    KV_CHECK(bytes > 0 && bytes % kSlabAlignBytes == 0);
    if (thread_->slabs >= kSlabsMax) {
      return absl::ResourceExhaustedError(absl::StrCat("there are ", kSlabsMax, " slabs: no more are made"));
    }
    KV_RETURN_IF_ERROR(Admit());
    ++thread_->slabs;
    KV_CHECK(thread_->pool.TrySubmit([thread = thread_.get(), weak = std::weak_ptr<DriverThread>(thread_),
                                      executor = executor_, pending = pending_, gpu, bytes,
                                      end = std::move(done)]() mutable {
      executor->Post([weak = std::move(weak), pending = std::move(pending), gpu, end = std::move(end),
                      made = thread->MakeOne(gpu, bytes)]() mutable {
        --*pending;
        const std::shared_ptr<DriverThread> alive = weak.lock();
        if (alive == nullptr) return end(absl::CancelledError("the memory of GPUs has been closed"));
        if (made.ok()) return end(std::make_unique<GpuSlab>(alive, gpu, *std::move(made)));
        --alive->slabs;
        end(made.status());
      });
    }));
    return absl::OkStatus();
  }

  absl::Status Scrub(const Slab& slab, ScrubDone done) override {
    KV_RETURN_IF_ERROR(Admit());
    absl::StatusOr<UniqueFd> fd = slab.Export();
    if (!fd.ok()) {
      --*pending_;
      return fd.status();
    }
    const GpuInfo& gpu = thread_->driver->gpus()[static_cast<size_t>(slab.gpu())];
    scrubber_(
        gpu, *std::move(fd), slab.bytes(),
        [executor = executor_, pending = pending_, end = std::move(done)](absl::Status status) mutable {
          executor->Post([pending = std::move(pending), end = std::move(end), result = std::move(status)]() mutable {
            --*pending;
            end(std::move(result));
          });
        });
    return absl::OkStatus();
  }

 private:
  absl::Status Admit() {
    if (*pending_ >= kSlabQueueMax) {
      return absl::ResourceExhaustedError(absl::StrCat(kSlabQueueMax, " slabs are being made or scrubbed: try again"));
    }
    ++*pending_;
    return absl::OkStatus();
  }

  Executor* const executor_;
  const SlabScrubber scrubber_;
  // Confined to the loop; callbacks may outlive this object.
  const std::shared_ptr<size_t> pending_ = std::make_shared<size_t>(0);
  const std::shared_ptr<DriverThread> thread_;
};

}  // namespace

std::unique_ptr<SlabMemory> NewGpuSlabMemory(const GpuDriver* driver, Executor* executor, SlabScrubber scrubber) {
  return std::make_unique<GpuSlabMemory>(driver, executor, std::move(scrubber));
}

}  // namespace kvartal::device
