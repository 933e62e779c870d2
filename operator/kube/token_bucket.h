// So many a second, and a burst of so many at once. A plain value; time is passed in.
// Invariant: over any time t at most burst + rate * t turns come up.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvartal::kube {

class TokenBucket {
 public:
  TokenBucket(double per_second, double burst) : per_ms_(per_second / 1000), burst_(burst), tokens_(burst) {}

  // Takes a turn; returns how long until it comes up.
  int64_t TakeMs(int64_t now_ms) {
    tokens_ = std::min(burst_, tokens_ + static_cast<double>(std::max<int64_t>(0, now_ms - last_ms_)) * per_ms_);
    last_ms_ = std::max(last_ms_, now_ms);
    tokens_ -= 1;
    return tokens_ >= 0 ? 0 : static_cast<int64_t>(-tokens_ / per_ms_) + 1;
  }
  // Gives back a turn that was not used.
  void GiveBack() { tokens_ = std::min(burst_, tokens_ + 1); }

 private:
  double per_ms_;
  double burst_;
  double tokens_;
  int64_t last_ms_ = 0;
};

}  // namespace kvartal::kube
