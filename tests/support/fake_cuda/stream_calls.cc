// Contexts, streams, events and the copies that run in them.
#include <cuda.h>

#include <cstdint>
#include <cstring>

#include "tests/support/fake_cuda/entry_points.h"
#include "tests/support/fake_cuda/fake_driver.h"

namespace kvartal::fake_cuda {
namespace {

thread_local Context* current = nullptr;

Context* AsContext(CUcontext context) { return reinterpret_cast<Context*>(context); }
Stream* AsStream(CUstream stream) { return reinterpret_cast<Stream*>(stream); }
Event* AsEvent(CUevent event) { return reinterpret_cast<Event*>(event); }

// What keeps a call that needs a context from running.
CUresult Usable(const FakeDriver& driver) {
  if (current == nullptr || !driver.Knows(current)) return CUDA_ERROR_INVALID_CONTEXT;
  return current->state();
}

CUresult PrimaryRetain(CUcontext* context, CUdevice device) {
  FAKE_CALL("cuDevicePrimaryCtxRetain");
  const int gpu = driver->GpuOf(device);
  if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
  Context* kept = nullptr;
  const CUresult result = driver->RetainContext(gpu, &kept);
  *context = reinterpret_cast<CUcontext>(kept);
  return result;
}

CUresult PrimaryRelease(CUdevice device) {
  FAKE_CALL("cuDevicePrimaryCtxRelease");
  const int gpu = driver->GpuOf(device);
  return gpu < 0 ? CUDA_ERROR_INVALID_DEVICE : driver->ReleaseContext(gpu);
}

CUresult SetCurrent(CUcontext context) {
  FAKE_CALL("cuCtxSetCurrent");
  if (!driver->Knows(AsContext(context))) return CUDA_ERROR_INVALID_CONTEXT;
  current = AsContext(context);
  return CUDA_SUCCESS;
}

CUresult StreamCreate(CUstream* stream, unsigned int, int) {
  FAKE_CALL("cuStreamCreateWithPriority");
  if (const CUresult result = Usable(*driver); result != CUDA_SUCCESS) return result;
  *stream = reinterpret_cast<CUstream>(new Stream(current));
  return CUDA_SUCCESS;
}

CUresult StreamDestroy(CUstream stream) {
  FAKE_CALL("cuStreamDestroy");
  delete AsStream(stream);
  return CUDA_SUCCESS;
}

CUresult StreamSynchronize(CUstream stream) {
  FAKE_CALL("cuStreamSynchronize");
  if (const CUresult result = Usable(*driver); result != CUDA_SUCCESS) return result;
  AsStream(stream)->WaitFor(AsStream(stream)->Last());
  return current->state();
}

CUresult Enqueue(FakeDriver* driver, CUstream stream, Stream::Work work) {
  if (const CUresult result = Usable(*driver); result != CUDA_SUCCESS) return result;
  if (&AsStream(stream)->context() != current) return CUDA_ERROR_INVALID_HANDLE;
  AsStream(stream)->Add(std::move(work));
  return CUDA_SUCCESS;
}

CUresult CopyToGpu(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  FAKE_CALL("cuMemcpyHtoDAsync");
  const int gpu = AsStream(stream)->context().gpu();
  return Enqueue(driver, stream, [=] {
    return driver->addresses().Use(to, bytes, gpu, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                   [&](std::byte* at) { std::memcpy(at, from, bytes); });
  });
}

CUresult CopyToHost(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_CALL("cuMemcpyDtoHAsync");
  const int gpu = AsStream(stream)->context().gpu();
  return Enqueue(driver, stream, [=] {
    return driver->addresses().Use(from, bytes, gpu, CU_MEM_ACCESS_FLAGS_PROT_READ,
                                   [&](const std::byte* at) { std::memcpy(to, at, bytes); });
  });
}

CUresult CopyWithinGpu(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_CALL("cuMemcpyDtoDAsync");
  const int gpu = AsStream(stream)->context().gpu();
  return Enqueue(driver, stream, [=] { return driver->addresses().Copy(to, from, bytes, gpu); });
}

CUresult Fill(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  FAKE_CALL("cuMemsetD8Async");
  const int gpu = AsStream(stream)->context().gpu();
  return Enqueue(driver, stream, [=] {
    return driver->addresses().Use(to, bytes, gpu, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                   [&](std::byte* at) { std::memset(at, value, bytes); });
  });
}

CUresult EventCreate(CUevent* event, unsigned int) {
  FAKE_CALL("cuEventCreate");
  if (const CUresult result = Usable(*driver); result != CUDA_SUCCESS) return result;
  *event = reinterpret_cast<CUevent>(new Event);
  return CUDA_SUCCESS;
}

CUresult EventRecord(CUevent event, CUstream stream) {
  FAKE_CALL("cuEventRecord");
  if (const CUresult result = Usable(*driver); result != CUDA_SUCCESS) return result;
  *AsEvent(event) = Event{AsStream(stream), AsStream(stream)->Last()};
  return CUDA_SUCCESS;
}

CUresult EventQuery(CUevent event) {
  FAKE_CALL("cuEventQuery");
  const Event& asked = *AsEvent(event);
  if (asked.stream == nullptr) return CUDA_SUCCESS;
  if (!asked.stream->Passed(asked.number)) return CUDA_ERROR_NOT_READY;
  return asked.stream->context().state();
}

CUresult EventDestroy(CUevent event) {
  FAKE_CALL("cuEventDestroy");
  delete AsEvent(event);
  return CUDA_SUCCESS;
}

}  // namespace

std::vector<EntryPoint> StreamEntryPoints() {
  return {{"cuDevicePrimaryCtxRetain", 7000, AsAddress(&PrimaryRetain)},
          {"cuDevicePrimaryCtxRelease", 11000, AsAddress(&PrimaryRelease)},
          {"cuCtxSetCurrent", 4000, AsAddress(&SetCurrent)},
          {"cuStreamCreateWithPriority", 5050, AsAddress(&StreamCreate)},
          {"cuStreamDestroy", 4000, AsAddress(&StreamDestroy)},
          {"cuStreamSynchronize", 2000, AsAddress(&StreamSynchronize)},
          {"cuMemcpyHtoDAsync", 3020, AsAddress(&CopyToGpu)},
          {"cuMemcpyDtoHAsync", 3020, AsAddress(&CopyToHost)},
          {"cuMemcpyDtoDAsync", 3020, AsAddress(&CopyWithinGpu)},
          {"cuMemsetD8Async", 3020, AsAddress(&Fill)},
          {"cuEventCreate", 2000, AsAddress(&EventCreate)},
          {"cuEventRecord", 2000, AsAddress(&EventRecord)},
          {"cuEventQuery", 2000, AsAddress(&EventQuery)},
          {"cuEventDestroy", 4000, AsAddress(&EventDestroy)}};
}

}  // namespace kvartal::fake_cuda
