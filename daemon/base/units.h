// Units of bytes and of time, and rounding.
#pragma once

#include <cstdint>

namespace kvartal {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr uint64_t kTiB = 1024 * kGiB;

inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1000 * kNsPerMs;

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr uint64_t RoundDown(uint64_t value, uint64_t multiple) { return value / multiple * multiple; }

}  // namespace kvartal
