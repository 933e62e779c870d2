// How much may be written to a disk, so that it lasts: a token bucket of so many bytes a second, some of which may be
// saved up, and what is still written when it runs low. A value; it is told the time.
// Invariant: what Admits let pass and was spent is never more than the rate and what was saved allow; only what had to
// be written whatever it costs takes the bucket below zero, and then nothing else is written until that is paid back.
#pragma once

#include <algorithm>
#include <cstdint>

#include "daemon/base/limits.h"
#include "daemon/policy/write_worth.h"

namespace kvartal::policy {

class WriteBudget {
 public:
  // 0: no limit.
  explicit WriteBudget(uint64_t bytes_per_second, int64_t now_ns)
      : rate_(static_cast<double>(bytes_per_second)),
        // Two of the largest blocks at least, or a small disk could never be written.
        most_(std::max(rate_ * kWriteBudgetSavedSeconds, 2.0 * kBlockBytesMax)),
        // Not all of it: a daemon that dies and starts over and over would have a full one each time.
        saved_(most_ / 2),
        at_ns_(now_ns) {}

  bool limited() const { return rate_ > 0; }
  uint64_t bytes_per_second() const { return static_cast<uint64_t>(rate_); }
  uint64_t saved_bytes(int64_t now_ns) const { return static_cast<uint64_t>(std::max(SavedAt(now_ns), 0.0)); }
  // What is written now has to be worth at least that.
  WriteWorth Asks(int64_t now_ns) const {
    const double saved = SavedAt(now_ns);
    if (!limited() || saved >= most_ * kPlenty) return WriteWorth::kAny;
    return saved >= most_ * kEnough ? WriteWorth::kLikely : WriteWorth::kProven;
  }

  // May a block of so many bytes be written now?
  bool Admits(int64_t now_ns, uint64_t bytes, WriteWorth worth) const {
    if (!limited()) return true;
    return SavedAt(now_ns) >= static_cast<double>(bytes) && worth >= Asks(now_ns);
  }
  void Spend(int64_t now_ns, uint64_t bytes) {
    saved_ = SavedAt(now_ns) - static_cast<double>(bytes);
    at_ns_ = std::max(at_ns_, now_ns);
  }

 private:
  static constexpr double kNsPerSecond = 1e9;
  // Parts of what may be saved. The upper half is for bursts of whatever comes. Of the lower one half is kept for what
  // has proved its worth: what is only likely is several times as much in a chat, and would leave nothing for it.
  static constexpr double kPlenty = 0.5;
  static constexpr double kEnough = 0.25;
  double SavedAt(int64_t now_ns) const {
    const double earned = rate_ * static_cast<double>(std::max<int64_t>(now_ns - at_ns_, 0)) / kNsPerSecond;
    return std::min(saved_ + earned, most_);
  }

  double rate_;
  double most_;
  double saved_;
  int64_t at_ns_;
};

}  // namespace kvartal::policy
