#include "tests/support/fake_cuda/gpu_node.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvartal::fake_cuda {
namespace {

constexpr mode_t kEveryUser = 0666;  // tests run as several users
constexpr char kStaleBytes[] = "left by whoever had this memory before";

// "slab.<gpu>.<bytes>.<exportable>.<random>": what a process that was sent the descriptor reads from its link.
struct FileName {
  int gpu = 0;
  uint64_t bytes = 0;
  int exportable = 0;
};

std::optional<FileName> ParseName(const std::string& path) {
  FileName name;
  const std::string file = std::filesystem::path(path).filename().string();
  unsigned long long bytes = 0;
  if (std::sscanf(file.c_str(), "slab.%d.%llu.%d.", &name.gpu, &bytes, &name.exportable) != 3) return std::nullopt;
  name.bytes = bytes;
  return name;
}

std::string NewName(int gpu, uint64_t bytes, bool exportable) {
  uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return "";
  return absl::StrFormat("slab.%d.%d.%d.%016x", gpu, bytes, exportable ? 1 : 0, random);
}

// A new allocation is no file of zeros.
bool Dirty(int fd, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kGranularityBytes) {
    if (::pwrite(fd, kStaleBytes, sizeof kStaleBytes, static_cast<off_t>(at)) != sizeof kStaleBytes) return false;
  }
  return true;
}

bool Held(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return false;
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace

uint64_t GpuNode::HeldBytes(int gpu) const {
  uint64_t held = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir_, ignored)) {
    const std::optional<FileName> name = ParseName(entry.path().string());
    if (!name.has_value() || name->gpu != gpu) continue;
    if (Held(entry.path().string())) {
      held += name->bytes;
    } else {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
  return held;
}

CUresult GpuNode::Allocate(int gpu, uint64_t bytes, bool exportable, Allocation* made) const {
  const UniqueFd lock(::open(absl::StrCat(dir_, "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, kEveryUser));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const uint64_t held = HeldBytes(gpu);
  if (bytes > memory_bytes_ || held > memory_bytes_ - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::string path = absl::StrCat(dir_, "/", NewName(gpu, bytes, exportable));
  UniqueFd fd(::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kEveryUser));
  if (!fd.valid() || ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || !Dirty(fd.get(), bytes)) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *made = Allocation{std::move(fd), gpu, bytes, exportable};
  return CUDA_SUCCESS;
}

std::optional<Allocation> GpuNode::Import(int fd) const {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), error);
  if (error || path.parent_path() != std::filesystem::canonical(dir_, error)) return std::nullopt;
  const std::optional<FileName> name = ParseName(path.string());
  if (!name.has_value() || name->exportable == 0) return std::nullopt;
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return std::nullopt;
  return Allocation{std::move(own), name->gpu, name->bytes, true};
}

}  // namespace kvartal::fake_cuda
