// Memory for keys: pages of its own, locked where the system allows it, left out of core dumps, zeros in a forked copy
// of the process, wiped before they go. One owner; movable. Invariant: what was in it is nowhere once it is destroyed.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "daemon/base/mapping.h"

namespace kvartal::cipher {

class SecretMemory {
 public:
  SecretMemory() = default;
  explicit SecretMemory(size_t bytes);  // zeros
  SecretMemory(SecretMemory&& other) noexcept { *this = std::move(other); }
  SecretMemory& operator=(SecretMemory&& other) noexcept;
  ~SecretMemory() { Wipe(); }

  std::span<std::byte> bytes() { return {pages_.data(), size_}; }
  std::span<const std::byte> bytes() const { return {pages_.data(), size_}; }

 private:
  void Wipe();
  Mapping pages_;
  size_t size_ = 0;
};

// Of the system; never predictable.
void FillRandom(std::span<std::byte> out);

}  // namespace kvartal::cipher
