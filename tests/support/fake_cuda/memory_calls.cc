// The virtual memory calls: allocations, handles, addresses, rights. None needs a context.
#include <cuda.h>
#include <fcntl.h>

#include <cstdint>
#include <utility>

#include "tests/support/fake_cuda/entry_points.h"
#include "tests/support/fake_cuda/fake_driver.h"

namespace kvartal::fake_cuda {
namespace {

CUresult Check(const FakeDriver& driver, const CUmemAllocationProp& properties) {
  const auto kinds = static_cast<unsigned>(properties.requestedHandleTypes);
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if ((kinds & ~static_cast<unsigned>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return driver.GpuOf(properties.location.id) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult GetGranularity(size_t* granularity, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags) {
  FAKE_CALL("cuMemGetAllocationGranularity");
  if (const CUresult result = Check(*driver, *properties); result != CUDA_SUCCESS) return result;
  *granularity = kGranularityBytes;
  return CUDA_SUCCESS;
}

CUresult Create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                unsigned long long) {  // NOLINT(google-runtime-int)
  FAKE_CALL("cuMemCreate");
  if (const CUresult result = Check(*driver, *properties); result != CUDA_SUCCESS) return result;
  if (bytes == 0 || bytes % kGranularityBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool exportable = properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  Allocation made;
  const CUresult result = driver->node().Allocate(driver->GpuOf(properties->location.id), bytes, exportable, &made);
  if (result == CUDA_SUCCESS) *handle = driver->Keep(std::move(made));
  return result;
}

CUresult Release(CUmemGenericAllocationHandle handle) {
  FAKE_CALL("cuMemRelease");
  return driver->Release(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Export(void* to, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType kind,
                unsigned long long) {  // NOLINT(google-runtime-int)
  FAKE_CALL("cuMemExportToShareableHandle");
  const auto allocation = driver->Find(handle);
  if (allocation == nullptr || !allocation->exportable) return CUDA_ERROR_INVALID_VALUE;
  if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const int fd = ::fcntl(allocation->fd.get(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(to) = fd;
  return CUDA_SUCCESS;
}

CUresult Import(CUmemGenericAllocationHandle* handle, void* from, CUmemAllocationHandleType kind) {
  FAKE_CALL("cuMemImportFromShareableHandle");
  if (kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  std::optional<Allocation> allocation = driver->node().Import(static_cast<int>(reinterpret_cast<intptr_t>(from)));
  if (!allocation.has_value()) return CUDA_ERROR_INVALID_VALUE;
  if (!driver->Sees(allocation->gpu)) return CUDA_ERROR_INVALID_DEVICE;
  *handle = driver->Keep(*std::move(allocation));
  return CUDA_SUCCESS;
}

CUresult AddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                        unsigned long long) {  // NOLINT(google-runtime-int)
  FAKE_CALL("cuMemAddressReserve");
  uint64_t reserved = 0;
  const CUresult result = driver->addresses().Reserve(bytes, &reserved);
  *address = reserved;
  return result;
}

CUresult AddressFree(CUdeviceptr address, size_t bytes) {
  FAKE_CALL("cuMemAddressFree");
  return driver->addresses().Free(address, bytes);
}

CUresult Map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {  // NOLINT(google-runtime-int)
  FAKE_CALL("cuMemMap");
  const auto allocation = driver->Find(handle);
  if (allocation == nullptr || offset != 0) return CUDA_ERROR_INVALID_VALUE;
  return driver->addresses().Map(address, bytes, *allocation);
}

CUresult Unmap(CUdeviceptr address, size_t bytes) {
  FAKE_CALL("cuMemUnmap");
  return driver->addresses().Unmap(address, bytes);
}

CUresult SetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* rights, size_t count) {
  FAKE_CALL("cuMemSetAccess");
  for (size_t i = 0; i < count; ++i) {
    const int gpu = driver->GpuOf(rights[i].location.id);
    if (rights[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
    const CUresult result = driver->addresses().SetAccess(address, bytes, gpu, rights[i].flags);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

std::vector<EntryPoint> MemoryEntryPoints() {
  return {{"cuMemGetAllocationGranularity", 10020, AsAddress(&GetGranularity)},
          {"cuMemCreate", 10020, AsAddress(&Create)},
          {"cuMemRelease", 10020, AsAddress(&Release)},
          {"cuMemExportToShareableHandle", 10020, AsAddress(&Export)},
          {"cuMemImportFromShareableHandle", 10020, AsAddress(&Import)},
          {"cuMemAddressReserve", 10020, AsAddress(&AddressReserve)},
          {"cuMemAddressFree", 10020, AsAddress(&AddressFree)},
          {"cuMemMap", 10020, AsAddress(&Map)},
          {"cuMemUnmap", 10020, AsAddress(&Unmap)},
          {"cuMemSetAccess", 10020, AsAddress(&SetAccess)}};
}

}  // namespace kvartal::fake_cuda
