// Time is injected. SystemClock: any thread. ManualClock: the test that owns it.
#pragma once

#include <cstdint>

#include "daemon/base/units.h"

namespace kvartal {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds on a clock that never steps back; meaningful within this process only.
  virtual int64_t MonotonicNs() const = 0;
  // Milliseconds since 1970: the only time that is written to disk.
  virtual int64_t WallMs() const = 0;
};

class SystemClock : public Clock {
 public:
  int64_t MonotonicNs() const override;
  int64_t WallMs() const override;
};

class ManualClock : public Clock {
 public:
  int64_t MonotonicNs() const override { return now_ns_; }
  int64_t WallMs() const override { return wall_ms_; }
  void AdvanceMs(int64_t ms) {
    now_ns_ += ms * kNsPerMs;
    wall_ms_ += ms;
  }

 private:
  int64_t now_ns_ = kNsPerSecond;
  int64_t wall_ms_ = 1'700'000'000'000;
};

}  // namespace kvartal
