// Copies and fills on a GPU, one after the other in the order they are given, beside the thread that gives them.
// A GpuContext is the process's own on one GPU, and may be used by any thread. A GpuStream or GpuEvent belongs to one
// thread. No memory may be unmapped or reused before the stream is past it; no event outlives its stream.
// Invariant: nothing here waits for the GPU but Wait. Any call may end Aborted: then the context is lost, and all
// later ones end so too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "daemon/base/status.h"
#include "daemon/device/gpu_driver.h"

namespace kvartal::device {

// The primary context of a GPU, about 500 MiB of its memory while it is held. Movable.
class GpuContext {
 public:
  static absl::StatusOr<GpuContext> Open(const GpuDriver& driver, int ordinal);
  GpuContext(GpuContext&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), context_(other.context_), device_(other.device_) {}
  GpuContext& operator=(GpuContext&&) = delete;
  ~GpuContext();

 private:
  friend class GpuStream;
  GpuContext(const CudaApi* api, void* context, int device) : api_(api), context_(context), device_(device) {}

  const CudaApi* api_;
  void* context_;  // a CUcontext
  int device_;     // a CUdevice
};

// A place in a stream. Movable.
class GpuEvent {
 public:
  GpuEvent(GpuEvent&& other) noexcept : api_(std::exchange(other.api_, nullptr)), event_(other.event_) {}
  GpuEvent& operator=(GpuEvent&& other) noexcept;
  ~GpuEvent() { Destroy(); }

  // Whether the GPU has done all that was given before it.
  absl::StatusOr<bool> Done() const;

 private:
  friend class GpuStream;
  GpuEvent(const CudaApi* api, void* event) : api_(api), event_(event) {}
  void Destroy();

  const CudaApi* api_;
  void* event_;  // a CUevent
};

enum class GpuPriority { kDemand, kBackground };

// Movable; its end waits for what it was given.
class GpuStream {
 public:
  // `context` must outlive it.
  static absl::StatusOr<GpuStream> Open(const GpuContext& context, GpuPriority priority);
  GpuStream(GpuStream&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), context_(other.context_), stream_(other.stream_) {}
  GpuStream& operator=(GpuStream&&) = delete;
  ~GpuStream();

  absl::Status CopyToGpu(DeviceAddress to, const void* from, size_t bytes);
  absl::Status CopyToHost(void* to, DeviceAddress from, size_t bytes);
  absl::Status CopyWithinGpu(DeviceAddress to, DeviceAddress from, size_t bytes);
  absl::Status Fill(DeviceAddress to, uint8_t value, size_t bytes);

  absl::StatusOr<GpuEvent> Mark();
  // For as long as the GPU takes, which for one that hangs is for ever: only where a watchdog may end the process.
  absl::Status Wait();

 private:
  GpuStream(const CudaApi* api, void* context, void* stream) : api_(api), context_(context), stream_(stream) {}
  absl::Status Enter() const;

  const CudaApi* api_;
  void* context_;  // a CUcontext
  void* stream_;   // a CUstream
};

}  // namespace kvartal::device
