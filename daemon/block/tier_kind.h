// The tiers, fastest first. Policy and index know a tier only by this name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartal {

enum class TierKind : uint8_t { kHbm = 0, kDram = 1, kNvme = 2 };

inline constexpr size_t kTierCount = 3;
inline constexpr TierKind kAllTiers[kTierCount] = {TierKind::kHbm, TierKind::kDram, TierKind::kNvme};

constexpr size_t TierIndex(TierKind tier) { return static_cast<size_t>(tier); }

constexpr const char* TierName(TierKind tier) {
  switch (tier) {
    case TierKind::kHbm:
      return "hbm";
    case TierKind::kDram:
      return "dram";
    case TierKind::kNvme:
      return "nvme";
  }
  return "?";
}

}  // namespace kvartal
