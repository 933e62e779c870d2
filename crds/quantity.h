// A size as Kubernetes writes it ("10Gi", "500M", 4096) or an integer percent ("25%") of a pool's capacity.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/status.h"

namespace kvartal::crds {

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

}  // namespace kvartal::crds
