#include "daemon/base/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvartal {

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

absl::StatusOr<Mapping> Mapping::Shared(int fd, size_t bytes, int protection, int extra_flags) {
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED | extra_flags, fd, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("mmap of ", bytes, " shared bytes"));
  return Mapping(static_cast<std::byte*>(data), bytes);
}

absl::StatusOr<Mapping> Mapping::Anonymous(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat("mmap of ", bytes, " anonymous bytes"));
  ::madvise(data, bytes, MADV_DONTDUMP);
  return Mapping(static_cast<std::byte*>(data), bytes);
}

bool Mapping::KeepFromSwap() const { return ::mlock2(data_, size_, MLOCK_ONFAULT) == 0; }

}  // namespace kvartal
