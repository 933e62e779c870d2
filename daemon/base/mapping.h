// A memory mapping with one owner. Movable; unmaps on destruction.
#pragma once

#include <cstddef>

#include "daemon/base/status.h"

namespace kvartal {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  // Maps `bytes` of `fd` from offset 0, shared. `protection` and `extra_flags` are mmap's.
  static absl::StatusOr<Mapping> Shared(int fd, size_t bytes, int protection, int extra_flags = 0);
  // Private anonymous memory, page aligned. Blocks of tenants pass through it: it is left out of core files.
  static absl::StatusOr<Mapping> Anonymous(size_t bytes);

  // What is touched of it from now on, and what was, is not written to swap. False: the limit on locked memory is too
  // low for all of it, and nothing changed.
  bool KeepFromSwap() const;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvartal
