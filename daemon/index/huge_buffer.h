// Zeroed private memory on huge pages where the system has them: ten million entries on 4 KiB pages pay a TLB miss a
// touch. Movable; unmaps on destruction. Not shared between threads.
#pragma once

#include <cstddef>

#include "daemon/base/mapping.h"

namespace kvartal::index {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Aligned to a huge page when it is at least one long. Pages appear when they are touched.
  explicit HugeBuffer(size_t bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Gives the pages of a range back; it reads as zeros afterwards. Whole pages only.
  void Drop(size_t offset, size_t bytes);

 private:
  Mapping memory_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvartal::index
