// Whether a disk may take new blocks, or be used at all: by its errors within a window. Time or a streak of successes
// makes it whole again.
// Confined to the engine loop.
// Invariant: one error alone never changes the answer.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/tier/device_state.h"

namespace kvartal::tier {

class DeviceHealth {
 public:
  explicit DeviceHealth(const Clock* clock) : clock_(clock) {}

  void OnError() {
    error_ms_[errors_ % kDeviceErrorsOfflineMax] = NowMs();
    ++errors_;
    successes_ = 0;
  }
  void OnSuccess() {
    if (errors_ > 0 && ++successes_ >= kDeviceHealSuccesses) errors_ = 0;
  }
  DeviceState state() const {
    if (Within(kDeviceErrorsOfflineMax)) return DeviceState::kOffline;
    return Within(kDeviceErrorsMax) ? DeviceState::kDegraded : DeviceState::kHealthy;
  }

 private:
  // The last `count` errors came within one window, and the newest within one of now.
  bool Within(uint32_t count) const {
    if (errors_ < count) return false;
    const int64_t newest = error_ms_[(errors_ - 1) % kDeviceErrorsOfflineMax];
    const int64_t oldest = error_ms_[(errors_ - count) % kDeviceErrorsOfflineMax];
    return newest - oldest <= kDeviceErrorWindowMs && NowMs() - newest <= kDeviceErrorWindowMs;
  }
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  const Clock* const clock_;
  std::array<int64_t, kDeviceErrorsOfflineMax> error_ms_{};  // a ring: the newest errors
  uint64_t errors_ = 0;
  uint32_t successes_ = 0;
};

static_assert(kDeviceErrorsMax < kDeviceErrorsOfflineMax);

}  // namespace kvartal::tier
