// The entry points of the CUDA driver that Kvartal calls, found at run time: nothing links to libcuda, so that one
// binary runs on nodes with and without a GPU. Only daemon/device's .cc files include this; cuda.h stays out of
// every other header.
// Any thread once it is loaded; it is never unloaded.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/base/status.h"

namespace kvartal::device {

// Each with the version of CUDA whose ABI is asked for: cuda.h renames what changed (cuStreamDestroy is
// cuStreamDestroy_v2), so that a plain dlsym would find the oldest form of a name. Types are PFN_<name>_v<version>.
#define KVARTAL_CUDA_CALLS(X)              \
  X(cuInit, 2000)                          \
  X(cuDriverGetVersion, 2020)              \
  X(cuGetErrorName, 6000)                  \
  X(cuDeviceGetCount, 2000)                \
  X(cuDeviceGet, 2000)                     \
  X(cuDeviceGetName, 2000)                 \
  X(cuDeviceGetUuid, 11040)                \
  X(cuDeviceTotalMem, 3020)                \
  X(cuDeviceGetAttribute, 2000)            \
  X(cuMemGetAllocationGranularity, 10020)  \
  X(cuMemCreate, 10020)                    \
  X(cuMemRelease, 10020)                   \
  X(cuMemExportToShareableHandle, 10020)   \
  X(cuMemImportFromShareableHandle, 10020) \
  X(cuMemAddressReserve, 10020)            \
  X(cuMemAddressFree, 10020)               \
  X(cuMemMap, 10020)                       \
  X(cuMemUnmap, 10020)                     \
  X(cuMemSetAccess, 10020)                 \
  X(cuDevicePrimaryCtxRetain, 7000)        \
  X(cuDevicePrimaryCtxRelease, 11000)      \
  X(cuCtxSetCurrent, 4000)                 \
  X(cuStreamCreateWithPriority, 5050)      \
  X(cuStreamDestroy, 4000)                 \
  X(cuStreamSynchronize, 2000)             \
  X(cuMemcpyHtoDAsync, 3020)               \
  X(cuMemcpyDtoHAsync, 3020)               \
  X(cuMemcpyDtoDAsync, 3020)               \
  X(cuMemsetD8Async, 3020)                 \
  X(cuEventCreate, 2000)                   \
  X(cuEventRecord, 2000)                   \
  X(cuEventQuery, 2000)                    \
  X(cuEventDestroy, 4000)

struct CudaApi {
#define KVARTAL_CUDA_MEMBER(name, version) PFN_##name##_v##version name = nullptr;
  KVARTAL_CUDA_CALLS(KVARTAL_CUDA_MEMBER)
#undef KVARTAL_CUDA_MEMBER
  bool simulated = false;  // the library says of itself that there is no GPU behind it
};

// NotFound: no such library (a node without a GPU). FailedPrecondition: it lacks a call, with the version that has it.
absl::StatusOr<CudaApi> LoadCudaApi(const std::string& library);

// OK for CUDA_SUCCESS; else what `call` was told, and what to do about it. Aborted: the context is lost for good, and
// with it what this process had on that GPU; another process is not touched.
absl::Status CudaStatus(const CudaApi& api, CUresult result, absl::string_view call);

}  // namespace kvartal::device

// A call of the driver, named in the error it may end with.
#define KV_CUDA(api, name, ...) CudaStatus((api), (api).name(__VA_ARGS__), #name)
