#include "tests/support/fake_cuda/address_space.h"

#include <sys/mman.h>

#include <cstring>
#include <iterator>
#include <mutex>

namespace kvartal::fake_cuda {
namespace {

void* AsPointer(uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

std::byte* ReserveNothing(uint64_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

bool IsGranular(uint64_t value) { return value % kGranularityBytes == 0; }

// A reservation is one granule longer than asked, so that it can start at a multiple of the granularity.
uint64_t Aligned(const std::byte* at) {
  const auto address = reinterpret_cast<uint64_t>(at);
  return (address + kGranularityBytes - 1) / kGranularityBytes * kGranularityBytes;
}

}  // namespace

CUresult AddressSpace::Reserve(uint64_t bytes, uint64_t* address) {
  if (bytes == 0 || !IsGranular(bytes)) return CUDA_ERROR_INVALID_VALUE;
  const std::unique_lock lock(mutex_);
  std::byte* const device = ReserveNothing(bytes + kGranularityBytes);
  std::byte* const alias = ReserveNothing(bytes);
  if (device == nullptr || alias == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = Aligned(device);
  const auto start = reinterpret_cast<uint64_t>(device);
  if (*address > start) ::munmap(device, *address - start);
  ::munmap(AsPointer(*address + bytes), start + kGranularityBytes - *address);
  reservations_[*address] = Reservation{bytes, alias};
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Free(uint64_t address, uint64_t bytes) {
  const std::unique_lock lock(mutex_);
  const auto reserved = reservations_.find(address);
  if (reserved == reservations_.end() || reserved->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(AsPointer(address), bytes);
  ::munmap(reserved->second.alias, bytes);
  reservations_.erase(reserved);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Map(uint64_t address, uint64_t bytes, const Allocation& allocation) {
  const std::unique_lock lock(mutex_);
  const auto reserved = Around(address, bytes);
  if (reserved == reservations_.end() || !IsGranular(address) || bytes != allocation.bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  if (next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::byte* const alias = reserved->second.alias + (address - reserved->first);
  if (::mmap(alias, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, allocation.fd.get(), 0) == MAP_FAILED) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  mappings_[address].bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Unmap(uint64_t address, uint64_t bytes) {
  const std::unique_lock lock(mutex_);
  if (!WholeMappings(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto reserved = Around(address, bytes);
  std::byte* const alias = reserved->second.alias + (address - reserved->first);
  if (::mmap(alias, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  mappings_.erase(mappings_.lower_bound(address), mappings_.lower_bound(address + bytes));
  return CUDA_SUCCESS;
}

CUresult AddressSpace::SetAccess(uint64_t address, uint64_t bytes, int gpu, CUmemAccess_flags flags) {
  const std::unique_lock lock(mutex_);
  if (!WholeMappings(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto end = mappings_.lower_bound(address + bytes);
  for (auto mapping = mappings_.find(address); mapping != end; ++mapping) mapping->second.access[gpu] = flags;
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Use(uint64_t address, uint64_t bytes, int gpu, CUmemAccess_flags wanted,
                           const std::function<void(std::byte*)>& use) {
  const std::shared_lock lock(mutex_);
  std::byte* const at = Reach(address, bytes, gpu, wanted);
  if (at == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
  use(at);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::Copy(uint64_t to, uint64_t from, uint64_t bytes, int gpu) {
  const std::shared_lock lock(mutex_);
  std::byte* const target = Reach(to, bytes, gpu, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const std::byte* const source = Reach(from, bytes, gpu, CU_MEM_ACCESS_FLAGS_PROT_READ);
  if (target == nullptr || source == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
  std::memmove(target, source, bytes);
  return CUDA_SUCCESS;
}

std::map<uint64_t, AddressSpace::Reservation>::iterator AddressSpace::Around(uint64_t address, uint64_t bytes) {
  auto after = reservations_.upper_bound(address);
  if (after == reservations_.begin()) return reservations_.end();
  const auto around = std::prev(after);
  return address + bytes <= around->first + around->second.bytes ? around : reservations_.end();
}

bool AddressSpace::WholeMappings(uint64_t address, uint64_t bytes) const {
  uint64_t at = address;
  while (at < address + bytes) {
    const auto mapping = mappings_.find(at);
    if (mapping == mappings_.end() || at + mapping->second.bytes > address + bytes) return false;
    at += mapping->second.bytes;
  }
  return bytes > 0;
}

std::byte* AddressSpace::Reach(uint64_t address, uint64_t bytes, int gpu, CUmemAccess_flags wanted) {
  uint64_t at = address;
  while (at < address + bytes) {
    const auto after = mappings_.upper_bound(at);
    if (after == mappings_.begin()) return nullptr;
    const auto& [start, mapping] = *std::prev(after);
    if (at >= start + mapping.bytes) return nullptr;
    const auto access = mapping.access.find(gpu);
    if (access == mapping.access.end() || access->second < wanted) return nullptr;
    at = start + mapping.bytes;
  }
  const auto reserved = Around(address, bytes);
  return reserved == reservations_.end() ? nullptr : reserved->second.alias + (address - reserved->first);
}

}  // namespace kvartal::fake_cuda
