#include "operator/kube/backoff.h"

#include <algorithm>

#include "operator/kube/limits.h"

namespace kvartal::kube {

double Jitter::Unit() {
  // SplitMix64.
  uint64_t bits = state_ += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

int64_t Jitter::Between(int64_t first, int64_t last) {
  return first + static_cast<int64_t>(Unit() * static_cast<double>(last - first + 1));
}

int64_t Backoff::NextMs(int64_t now_ms) {
  const bool healthy = step_ms_ > 0 && now_ms - last_ms_ >= kWatchBackoffResetMs;
  step_ms_ = step_ms_ == 0 || healthy ? kWatchBackoffMinMs : std::min(step_ms_ * 2, kWatchBackoffMaxMs);
  const int64_t wait_ms = step_ms_ + static_cast<int64_t>(jitter_.Unit() * static_cast<double>(step_ms_));
  last_ms_ = now_ms + wait_ms;
  return wait_ms;
}

}  // namespace kvartal::kube
