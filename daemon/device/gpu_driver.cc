#include "daemon/device/gpu_driver.h"

#include <array>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/check.h"
#include "daemon/device/cuda_api.h"

namespace kvartal::device {
namespace {

CUmemAllocationProp PropertiesOf(int ordinal) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

std::string UuidText(const CUuuid& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  Release();
  api_ = std::exchange(other.api_, nullptr);
  handle_ = other.handle_;
  bytes_ = other.bytes_;
  return *this;
}

// A failure leaves the memory to the end of the process, which frees it surely.
void GpuMemory::Release() {
  if (api_ != nullptr) api_->cuMemRelease(handle_);
}

absl::StatusOr<UniqueFd> GpuMemory::Export() const {
  int fd = -1;
  KV_RETURN_IF_ERROR(
      KV_CUDA(*api_, cuMemExportToShareableHandle, &fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return UniqueFd(fd);
}

absl::StatusOr<GpuMapping> GpuMapping::Map(const GpuMemory& memory, int ordinal, GpuAccess access) {
  const CudaApi& api = *memory.api_;
  const uint64_t bytes = memory.bytes_;
  CUdeviceptr address = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(api, cuMemAddressReserve, &address, bytes, 0, 0, 0));
  absl::Status mapped = KV_CUDA(api, cuMemMap, address, bytes, 0, memory.handle_, 0);
  if (!mapped.ok()) {
    api.cuMemAddressFree(address, bytes);
    return mapped;
  }
  GpuMapping mapping(&api, address, bytes);
  CUmemAccessDesc rights = {};
  rights.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  rights.location.id = ordinal;
  rights.flags = access == GpuAccess::kRead ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  KV_RETURN_IF_ERROR(KV_CUDA(api, cuMemSetAccess, address, bytes, &rights, 1));
  return mapping;
}

GpuMapping& GpuMapping::operator=(GpuMapping&& other) noexcept {
  Unmap();
  api_ = std::exchange(other.api_, nullptr);
  address_ = other.address_;
  bytes_ = other.bytes_;
  return *this;
}

// As Release: what fails here ends with the process.
void GpuMapping::Unmap() {
  if (api_ == nullptr) return;
  if (api_->cuMemUnmap(address_, bytes_) == CUDA_SUCCESS) api_->cuMemAddressFree(address_, bytes_);
}

GpuDriver::GpuDriver(std::unique_ptr<CudaApi> api) : api_(std::move(api)) {}
GpuDriver::~GpuDriver() = default;

bool GpuDriver::simulated() const { return api_->simulated; }

absl::StatusOr<std::unique_ptr<GpuDriver>> GpuDriver::Load(const std::string& library) {
  KV_ASSIGN_OR_RETURN(CudaApi api, LoadCudaApi(library));
  std::unique_ptr<GpuDriver> driver(new GpuDriver(std::make_unique<CudaApi>(api)));
  KV_RETURN_IF_ERROR(KV_CUDA(api, cuInit, 0));
  KV_RETURN_IF_ERROR(KV_CUDA(api, cuDriverGetVersion, &driver->version_));
  KV_RETURN_IF_ERROR(driver->FindGpus());
  return driver;
}

absl::Status GpuDriver::FindGpus() {
  int count = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuDeviceGetCount, &count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    KV_ASSIGN_OR_RETURN(GpuInfo gpu, Describe(ordinal));
    gpus_.push_back(std::move(gpu));
  }
  return absl::OkStatus();
}

absl::StatusOr<GpuInfo> GpuDriver::Describe(int ordinal) const {
  GpuInfo gpu;
  gpu.ordinal = ordinal;
  CUdevice device = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuDeviceGet, &device, ordinal));
  CUuuid uuid = {};
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuDeviceGetUuid, &uuid, device));
  gpu.uuid = UuidText(uuid);
  std::array<char, 256> name = {};
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuDeviceGetName, name.data(), static_cast<int>(name.size()) - 1, device));
  gpu.name = name.data();
  size_t bytes = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuDeviceTotalMem, &bytes, device));
  gpu.memory_bytes = bytes;
  int virtual_memory = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuDeviceGetAttribute, &virtual_memory,
                             CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
  int by_fd = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuDeviceGetAttribute, &by_fd,
                             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device));
  gpu.shares_by_fd = virtual_memory != 0 && by_fd != 0;
  if (!gpu.shares_by_fd) return gpu;
  const CUmemAllocationProp properties = PropertiesOf(ordinal);
  size_t granularity = 0;
  KV_RETURN_IF_ERROR(
      KV_CUDA(*api_, cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  gpu.granularity_bytes = granularity;
  return gpu;
}

absl::StatusOr<GpuMemory> GpuDriver::Allocate(int ordinal, uint64_t bytes) const {
  KV_CHECK(ordinal >= 0 && static_cast<size_t>(ordinal) < gpus_.size());
  const GpuInfo& gpu = gpus_[static_cast<size_t>(ordinal)];
  if (!gpu.shares_by_fd) {
    return absl::UnimplementedError(
        absl::StrCat(gpu.uuid, " cannot share memory by file descriptor, so that nothing of it can be given to a pod"));
  }
  if (bytes == 0 || bytes % gpu.granularity_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes on ", gpu.uuid, ": not a multiple of ", gpu.granularity_bytes));
  }
  const CUmemAllocationProp properties = PropertiesOf(ordinal);
  CUmemGenericAllocationHandle handle = 0;
  KV_RETURN_IF_ERROR(KV_CUDA(*api_, cuMemCreate, &handle, bytes, &properties, 0));
  return GpuMemory(api_.get(), handle, bytes);
}

absl::StatusOr<GpuMemory> GpuDriver::Import(int fd, uint64_t bytes) const {
  CUmemGenericAllocationHandle handle = 0;
  void* const as_pointer = std::bit_cast<void*>(static_cast<uintptr_t>(fd));  // the form the driver takes an fd in
  KV_RETURN_IF_ERROR(
      KV_CUDA(*api_, cuMemImportFromShareableHandle, &handle, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return GpuMemory(api_.get(), handle, bytes);
}

}  // namespace kvartal::device
