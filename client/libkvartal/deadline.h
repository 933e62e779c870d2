// When a call must be back. Counts on a clock that never steps.
// Immutable.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvartal::client {

class Deadline {
 public:
  static Deadline In(uint32_t ms) { return Deadline(NowNs() + int64_t{ms} * kNsPerMs, ms); }

  uint32_t budget_ms() const { return budget_ms_; }
  // Rounded up, so that a wait of this long is never too short; 0 once it has passed.
  uint32_t RemainingMs() const {
    const int64_t left_ns = at_ns_ - NowNs();
    return left_ns <= 0 ? 0 : static_cast<uint32_t>((left_ns + kNsPerMs - 1) / kNsPerMs);
  }
  bool passed() const { return RemainingMs() == 0; }

  static int64_t NowNs() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  static constexpr int64_t kNsPerMs = 1'000'000;
  Deadline(int64_t at_ns, uint32_t budget_ms) : at_ns_(at_ns), budget_ms_(budget_ms) {}
  int64_t at_ns_;
  uint32_t budget_ms_;
};

}  // namespace kvartal::client
