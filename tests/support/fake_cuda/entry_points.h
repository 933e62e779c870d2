// The functions this library stands in for, by name and the version of CUDA that brought this form of them, for
// cuGetProcAddress.
#pragma once

#include <cuda.h>

#include <vector>

namespace kvartal::fake_cuda {

struct EntryPoint {
  const char* name;
  int version;
  void* function;
};

template <typename Function>
void* AsAddress(Function* function) {
  return reinterpret_cast<void*>(function);
}

std::vector<EntryPoint> DeviceEntryPoints();
std::vector<EntryPoint> MemoryEntryPoints();
std::vector<EntryPoint> StreamEntryPoints();

}  // namespace kvartal::fake_cuda

// First in each function: what was injected, and no state before cuInit.
#define FAKE_CALL(name)                                                                                       \
  if (const CUresult told = ::kvartal::fake_cuda::Injected().Before(name); told != CUDA_SUCCESS) return told; \
  ::kvartal::fake_cuda::FakeDriver* const driver = ::kvartal::fake_cuda::Driver();                            \
  if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED
