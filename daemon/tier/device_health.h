// Whether a disk may take new blocks: too many errors in a window say no, time or a streak of successes says yes again.
// Confined to the engine loop.
// Invariant: one error alone never changes the answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/base/clock.h"
#include "daemon/base/limits.h"

namespace kvartal::tier {

class DeviceHealth {
 public:
  explicit DeviceHealth(const Clock* clock) : clock_(clock) {}

  void OnError() {
    error_ms_[errors_ % kDeviceErrorsMax] = NowMs();
    ++errors_;
    successes_ = 0;
  }
  void OnSuccess() {
    if (errors_ > 0 && ++successes_ >= kDeviceHealSuccesses) errors_ = 0;
  }
  bool healthy() const {
    if (errors_ < kDeviceErrorsMax) return true;
    const int64_t newest = error_ms_[(errors_ - 1) % kDeviceErrorsMax];
    const int64_t oldest = error_ms_[errors_ % kDeviceErrorsMax];
    return newest - oldest > kDeviceErrorWindowMs || NowMs() - newest > kDeviceErrorWindowMs;
  }

 private:
  int64_t NowMs() const { return clock_->MonotonicNs() / 1'000'000; }

  const Clock* const clock_;
  std::array<int64_t, kDeviceErrorsMax> error_ms_{};  // a ring: the newest errors
  uint64_t errors_ = 0;
  uint32_t successes_ = 0;
};

}  // namespace kvartal::tier
