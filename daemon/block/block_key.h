// The engine's 32-byte chained prefix hash of one chunk of tokens. Valid within one namespace digest; always compared
// whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace kvartal {

inline constexpr size_t kBlockKeyBytes = 32;

struct BlockKey {
  std::array<uint8_t, kBlockKeyBytes> bytes{};

  friend bool operator==(const BlockKey&, const BlockKey&) = default;
  // Keys are hashes already: any eight bytes are as good a hash as a computed one. A hostile tenant can only collide
  // with itself, since the index mixes the namespace in.
  uint64_t Prefix64() const {
    uint64_t value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
};

// Lower-case hex, for logs and tests; `bytes_shown` of the 32.
std::string KeyToHex(const BlockKey& key, size_t bytes_shown = kBlockKeyBytes);

}  // namespace kvartal
