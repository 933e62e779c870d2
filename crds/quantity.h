// A size as Kubernetes writes it ("10Gi", "500M", 4096) or an integer percent ("25%") of a pool's capacity.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/status.h"
#include "daemon/base/units.h"

namespace kvartal::crds {

// Stands for the capacity of a node that nobody described: more than any node has, so that every size fits, and shares
// are in proportion. Nobody is told it, and it does not decide whether bytes or a percentage are more.
inline constexpr uint64_t kUnknownCapacityBytes = 1024 * kTiB;

struct Quantity {
  uint64_t bytes = 0;
  uint32_t percent = 0;  // 1..100 when it is a percentage
  bool is_percent = false;

  uint64_t Resolve(uint64_t capacity_bytes) const;
  friend bool operator==(const Quantity&, const Quantity&) = default;
};

// InvalidArgument says what is allowed. No floats, no negative values, no overflow.
absl::StatusOr<Quantity> ParseQuantity(std::string_view text);
// As people write it: "512Mi" where that is exact.
std::string ShownBytes(uint64_t bytes);
// What it comes to; of a capacity that is not known the percentage as it is.
std::string ShownOf(const Quantity& size, uint64_t capacity_bytes);

}  // namespace kvartal::crds
