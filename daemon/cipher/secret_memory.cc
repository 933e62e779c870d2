#include "daemon/cipher/secret_memory.h"

#include <openssl/crypto.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::cipher {

SecretMemory::SecretMemory(size_t bytes) : size_(bytes) {
  absl::StatusOr<Mapping> pages = Mapping::Anonymous(RoundUp(bytes, kSlotAlignBytes));
  KV_CHECK(pages.ok());
  pages_ = *std::move(pages);
  // Best effort, both: a limit on locked memory is no reason to have no key.
  (void)pages_.KeepFromSwap();
  (void)::madvise(pages_.data(), pages_.size(), MADV_WIPEONFORK);
}

SecretMemory& SecretMemory::operator=(SecretMemory&& other) noexcept {
  std::swap(pages_, other.pages_);
  std::swap(size_, other.size_);
  return *this;
}

void SecretMemory::Wipe() {
  if (pages_.data() != nullptr) OPENSSL_cleanse(pages_.data(), pages_.size());
}

void FillRandom(std::span<std::byte> out) {
  KV_CHECK(::getrandom(out.data(), out.size(), 0) == static_cast<ssize_t>(out.size()));
}

}  // namespace kvartal::cipher
