#include "daemon/index/huge_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/units.h"

namespace kvartal::index {
namespace {
constexpr size_t kHugePageBytes = 2 * kMiB;
}  // namespace

HugeBuffer::HugeBuffer(size_t bytes) : size_(bytes) {
  const bool huge = bytes >= kHugePageBytes;
  // Anonymous memory that is not reserved is refused only when the address space or the map count is used up: there is
  // no way on from there.
  absl::StatusOr<Mapping> memory = Mapping::Anonymous(huge ? bytes + kHugePageBytes : bytes);
  KV_CHECK(memory.ok());
  memory_ = *std::move(memory);
  data_ = memory_.data();
  if (huge) {
    const uint64_t skip =
        RoundUp(reinterpret_cast<uintptr_t>(data_), kHugePageBytes) - reinterpret_cast<uintptr_t>(data_);
    data_ += skip;
    // A kernel without huge pages says no; small ones work too.
    (void)::madvise(data_, bytes, MADV_HUGEPAGE);
  }
}

void HugeBuffer::Drop(size_t offset, size_t bytes) {
  KV_CHECK(offset <= size_ && bytes <= size_ - offset);
  KV_CHECK(::madvise(data_ + offset, bytes, MADV_DONTNEED) == 0);
}

}  // namespace kvartal::index
