// cuGetProcAddress and the calls about the driver and its devices.
#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/support/fake_cuda/entry_points.h"
#include "tests/support/fake_cuda/fake_driver.h"

namespace kvartal::fake_cuda {
namespace {

constexpr int kCudaVersion = 13000;
constexpr char kName[] = "Simulated GPU (no hardware behind it)";

CUresult Init(unsigned int) {
  if (const CUresult told = Injected().Before("cuInit"); told != CUDA_SUCCESS) return told;
  return StartDriver();
}

CUresult DriverGetVersion(int* version) {
  *version = kCudaVersion;
  return CUDA_SUCCESS;
}

CUresult GetErrorName(CUresult error, const char** name) {
  struct Named {
    CUresult error;
    const char* name;
  };
  static constexpr std::array kNames = {
      Named{CUDA_SUCCESS, "CUDA_SUCCESS"},
      Named{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      Named{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      Named{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
      Named{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
      Named{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
      Named{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
      Named{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
      Named{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
      Named{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      Named{CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
      Named{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
  };
  const auto* const found =
      std::find_if(kNames.begin(), kNames.end(), [&](const Named& named) { return named.error == error; });
  *name = found == kNames.end() ? nullptr : found->name;
  return found == kNames.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult DeviceGetCount(int* count) {
  FAKE_CALL("cuDeviceGetCount");
  *count = static_cast<int>(driver->settings().visible.size());
  return CUDA_SUCCESS;
}

CUresult DeviceGet(CUdevice* device, int ordinal) {
  FAKE_CALL("cuDeviceGet");
  if (driver->GpuOf(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult DeviceGetName(char* name, int length, CUdevice device) {
  FAKE_CALL("cuDeviceGetName");
  if (driver->GpuOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t bytes = std::min(sizeof kName, static_cast<size_t>(length));
  std::memcpy(name, kName, bytes);
  name[bytes - 1] = '\0';
  return CUDA_SUCCESS;
}

// The same GPU has the same one in every process, whatever its ordinal is there.
CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) {
  FAKE_CALL("cuDeviceGetUuid");
  const int gpu = driver->GpuOf(device);
  if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
  static constexpr std::array<char, sizeof uuid->bytes> kBase = {'s', 'i', 'm', 'u', 'l', 'a', 't', 'e', 'd'};
  std::memcpy(uuid->bytes, kBase.data(), kBase.size());
  uuid->bytes[kBase.size() - 1] = static_cast<char>(gpu);
  return CUDA_SUCCESS;
}

CUresult DeviceTotalMem(size_t* bytes, CUdevice device) {
  FAKE_CALL("cuDeviceTotalMem");
  if (driver->GpuOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = driver->settings().memory_bytes;
  return CUDA_SUCCESS;
}

CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  FAKE_CALL("cuDeviceGetAttribute");
  if (driver->GpuOf(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
                   attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
               ? 1
               : 0;
  return CUDA_SUCCESS;
}

const std::vector<EntryPoint>& AllEntryPoints() {
  static const auto* const all = [] {
    auto* const made = new std::vector<EntryPoint>(DeviceEntryPoints());
    for (const EntryPoint& entry : MemoryEntryPoints()) made->push_back(entry);
    for (const EntryPoint& entry : StreamEntryPoints()) made->push_back(entry);
    return made;
  }();
  return *all;
}

}  // namespace

std::vector<EntryPoint> DeviceEntryPoints() {
  return {{"cuInit", 2000, AsAddress(&Init)},
          {"cuDriverGetVersion", 2020, AsAddress(&DriverGetVersion)},
          {"cuGetErrorName", 6000, AsAddress(&GetErrorName)},
          {"cuDeviceGetCount", 2000, AsAddress(&DeviceGetCount)},
          {"cuDeviceGet", 2000, AsAddress(&DeviceGet)},
          {"cuDeviceGetName", 2000, AsAddress(&DeviceGetName)},
          {"cuDeviceGetUuid", 11040, AsAddress(&DeviceGetUuid)},
          {"cuDeviceTotalMem", 3020, AsAddress(&DeviceTotalMem)},
          {"cuDeviceGetAttribute", 2000, AsAddress(&DeviceGetAttribute)}};
}

}  // namespace kvartal::fake_cuda

// All that the library shows of itself.
#pragma GCC visibility push(default)
extern "C" {

// A program that finds this symbol says everywhere that its GPUs are simulated.
extern const int kvartalSimulatedGpus;
const int kvartalSimulatedGpus = 1;

// 0, or -1 for a text that is not understood.
int kvartalFakeCudaInject(const char* text) { return kvartal::fake_cuda::Injected().Add(text) ? 0 : -1; }

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t,
                             CUdriverProcAddressQueryResult* found) {
  *function = nullptr;
  *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const auto& entry : kvartal::fake_cuda::AllEntryPoints()) {
    if (std::string_view(entry.name) != symbol) continue;
    if (entry.version > version) {
      *found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      continue;
    }
    *found = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = entry.function;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
#pragma GCC visibility pop
