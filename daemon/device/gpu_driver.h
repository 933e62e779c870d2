// The GPUs of this node and their memory, through the CUDA driver (found by dlopen) or through the library of
// tests/support/fake_cuda, which simulates them: the same code either way.
// A GpuDriver makes and shares memory without a CUDA context, as the daemon does; GpuMapping is for processes that have
// one (gpu_stream.h). Any thread.
// Invariant: one GpuMemory is one allocation of the driver: it is exported, mapped and released whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::device {

struct CudaApi;

// In the address space of GPUs: the host must not touch it.
using DeviceAddress = uint64_t;

struct GpuInfo {
  int ordinal = 0;   // as this process counts; another may see other GPUs
  std::string uuid;  // "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi -L prints it
  std::string name;
  uint64_t memory_bytes = 0;
  uint64_t granularity_bytes = 0;  // sizes of allocations are multiples of it
  bool shares_by_fd = false;       // memory can be exported as a file descriptor
};

enum class GpuAccess { kRead, kReadWrite };

// Memory of one GPU, held by a handle. The bytes are there until every handle, every exported fd and every mapping is
// gone, in all processes: the end of this object frees nothing that somebody else holds. Movable.
class GpuMemory {
 public:
  GpuMemory(const CudaApi* api, uint64_t handle, uint64_t bytes) : api_(api), handle_(handle), bytes_(bytes) {}
  GpuMemory(GpuMemory&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), handle_(other.handle_), bytes_(other.bytes_) {}
  GpuMemory& operator=(GpuMemory&& other) noexcept;
  ~GpuMemory() { Release(); }

  uint64_t bytes() const { return bytes_; }
  // To be sent over a Unix socket. Whoever has it can map the memory read-write: which fds a process receives is the
  // only isolation there is.
  absl::StatusOr<UniqueFd> Export() const;

 private:
  friend class GpuMapping;
  void Release();

  const CudaApi* api_;
  uint64_t handle_;
  uint64_t bytes_;
};

// GpuMemory in this process's address space, accessible to one GPU. It keeps the memory alive by itself. Movable.
class GpuMapping {
 public:
  // `access` finds bugs; it is no protection, since each process chooses its own.
  static absl::StatusOr<GpuMapping> Map(const GpuMemory& memory, int ordinal, GpuAccess access);
  GpuMapping(GpuMapping&& other) noexcept
      : api_(std::exchange(other.api_, nullptr)), address_(other.address_), bytes_(other.bytes_) {}
  GpuMapping& operator=(GpuMapping&& other) noexcept;
  ~GpuMapping() { Unmap(); }

  DeviceAddress address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  GpuMapping(const CudaApi* api, DeviceAddress address, uint64_t bytes) : api_(api), address_(address), bytes_(bytes) {}
  void Unmap();

  const CudaApi* api_;
  DeviceAddress address_;
  uint64_t bytes_;
};

class GpuDriver {
 public:
  // NotFound: this node has no driver, or no GPU to see. Else why it cannot be used, and what to do. Memory, mappings
  // and streams must not outlive it.
  static absl::StatusOr<std::unique_ptr<GpuDriver>> Load(const std::string& library = "libcuda.so.1");
  ~GpuDriver();

  const std::vector<GpuInfo>& gpus() const { return gpus_; }
  int version() const { return version_; }  // of CUDA, as the driver tells it: 13000 is 13.0
  bool simulated() const;                   // no GPU is behind it: to be said wherever a person reads of it

  // `bytes`: a multiple of the GPU's granularity. ResourceExhausted: not that much is free.
  absl::StatusOr<GpuMemory> Allocate(int ordinal, uint64_t bytes) const;
  // What another process exported; `bytes` is its size as that process tells it. `fd` stays the caller's.
  absl::StatusOr<GpuMemory> Import(int fd, uint64_t bytes) const;

  const CudaApi& api() const { return *api_; }

 private:
  explicit GpuDriver(std::unique_ptr<CudaApi> api);
  absl::Status FindGpus();
  absl::StatusOr<GpuInfo> Describe(int ordinal) const;

  std::unique_ptr<CudaApi> api_;
  int version_ = 0;
  std::vector<GpuInfo> gpus_;
};

}  // namespace kvartal::device
