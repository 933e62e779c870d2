// 32 bytes that separate incompatible KV: model and weights revision, KV dtype, page layout, hash seed, LoRA content,
// engine kind, salt, epoch. The client computes it; the daemon adds the tenant, so equal digests of two tenants never
// meet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvartal {

inline constexpr size_t kNamespaceDigestBytes = 32;

struct NamespaceDigest {
  std::array<uint8_t, kNamespaceDigestBytes> bytes{};

  friend bool operator==(const NamespaceDigest&, const NamespaceDigest&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const NamespaceDigest& digest) {
    return H::combine(std::move(h), digest.bytes);
  }
};

}  // namespace kvartal
