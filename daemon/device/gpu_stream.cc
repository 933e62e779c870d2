#include "daemon/device/gpu_stream.h"

#include "daemon/device/cuda_api.h"

namespace kvartal::device {
namespace {

// Lower is more urgent; a GPU knows at least these two.
constexpr int kDemandPriority = -1;
constexpr int kBackgroundPriority = 0;

CUcontext AsContext(void* context) { return static_cast<CUcontext>(context); }
CUevent AsEvent(void* event) { return static_cast<CUevent>(event); }
CUstream AsStream(void* stream) { return static_cast<CUstream>(stream); }

}  // namespace

absl::StatusOr<GpuContext> GpuContext::Open(const GpuDriver& driver, int ordinal) {
  const CudaApi& api = driver.api();
  CUdevice device = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(api, cuDeviceGet, &device, ordinal));
  CUcontext context = nullptr;
  KV_RETURN_IF_ERROR(KV_CUDA(api, cuDevicePrimaryCtxRetain, &context, device));
  return GpuContext(&api, context, device);
}

GpuContext::~GpuContext() {
  if (api_ != nullptr) api_->cuDevicePrimaryCtxRelease(device_);
}

GpuEvent& GpuEvent::operator=(GpuEvent&& other) noexcept {
  Destroy();
  api_ = std::exchange(other.api_, nullptr);
  event_ = other.event_;
  return *this;
}

void GpuEvent::Destroy() {
  if (api_ != nullptr) api_->cuEventDestroy(AsEvent(event_));
}

absl::StatusOr<bool> GpuEvent::Done() const {
  const CUresult result = api_->cuEventQuery(AsEvent(event_));
  if (result == CUDA_ERROR_NOT_READY) return false;
  KV_RETURN_IF_ERROR(CudaStatus(*api_, result, "cuEventQuery"));
  return true;
}

absl::StatusOr<GpuStream> GpuStream::Open(const GpuContext& context, GpuPriority priority) {
  GpuStream stream(context.api_, context.context_, nullptr);
  KV_RETURN_IF_ERROR(stream.Enter());
  CUstream made = nullptr;
  const int urgency = priority == GpuPriority::kDemand ? kDemandPriority : kBackgroundPriority;
  KV_RETURN_IF_ERROR(KV_CUDA(*context.api_, cuStreamCreateWithPriority, &made, CU_STREAM_NON_BLOCKING, urgency));
  stream.stream_ = made;
  return stream;
}

GpuStream::~GpuStream() {
  if (api_ == nullptr || stream_ == nullptr || !Wait().ok()) return;
  api_->cuStreamDestroy(AsStream(stream_));
}

// The current context is the calling thread's.
absl::Status GpuStream::Enter() const { return KV_CUDA(*api_, cuCtxSetCurrent, AsContext(context_)); }

absl::Status GpuStream::CopyToGpu(DeviceAddress to, const void* from, size_t bytes) {
  KV_RETURN_IF_ERROR(Enter());
  return KV_CUDA(*api_, cuMemcpyHtoDAsync, to, from, bytes, AsStream(stream_));
}

absl::Status GpuStream::CopyToHost(void* to, DeviceAddress from, size_t bytes) {
  KV_RETURN_IF_ERROR(Enter());
  return KV_CUDA(*api_, cuMemcpyDtoHAsync, to, from, bytes, AsStream(stream_));
}

absl::Status GpuStream::CopyWithinGpu(DeviceAddress to, DeviceAddress from, size_t bytes) {
  KV_RETURN_IF_ERROR(Enter());
  return KV_CUDA(*api_, cuMemcpyDtoDAsync, to, from, bytes, AsStream(stream_));
}

absl::Status GpuStream::Fill(DeviceAddress to, uint8_t value, size_t bytes) {
  KV_RETURN_IF_ERROR(Enter());
  return KV_CUDA(*api_, cuMemsetD8Async, to, value, bytes, AsStream(stream_));
}

absl::StatusOr<GpuEvent> GpuStream::Mark() {
  KV_RETURN_IF_ERROR(Enter());
  CUevent event = nullptr;
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING));
  GpuEvent mark(api_, event);
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuEventRecord, event, AsStream(stream_)));
  return mark;
}

absl::Status GpuStream::Wait() {
  KV_RETURN_IF_ERROR(Enter());
  return KV_CUDA(*api_, cuStreamSynchronize, AsStream(stream_));
}

}  // namespace kvartal::device
