// How long things took: counts in buckets that grow by a quarter of an octave, so that a percentile is right to 19 %.
// Confined to one thread; copy it to hand it on.
// Invariant: a percentile is never below what was measured: it is the upper bound of its bucket.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvartal {

class LatencyHistogram {
 public:
  static constexpr size_t kBuckets = 4 * 40;  // up to a day in microseconds

  void AddNs(int64_t ns) {
    const uint64_t us = ns <= 0 ? 0 : (static_cast<uint64_t>(ns) + 999) / 1000;
    ++counts_[BucketOf(us)];
    ++count_;
    sum_us_ += us;
  }
  uint64_t count() const { return count_; }
  uint64_t sum_us() const { return sum_us_; }
  // 0 when empty. `percent` in 0..100, nearest rank.
  uint64_t PercentileUs(uint32_t percent) const {
    const uint64_t rank = (count_ * percent + 99) / 100;
    uint64_t seen = 0;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      seen += counts_[bucket];
      if (seen >= rank && seen > 0) return UpperUs(bucket);
    }
    return 0;
  }
  uint64_t CountIn(size_t bucket) const { return counts_[bucket]; }
  // The largest value that belongs to the bucket.
  static constexpr uint64_t UpperUs(size_t bucket) {
    if (bucket < 4) return bucket;
    const size_t octave = bucket / 4 + 1;
    const uint64_t quarter = uint64_t{1} << (octave - 2);
    return (uint64_t{1} << octave) + (bucket % 4 + 1) * quarter - 1;
  }
  static constexpr size_t BucketOf(uint64_t us) {
    if (us < 4) return us;
    const auto octave = static_cast<size_t>(std::bit_width(us)) - 1;
    const size_t bucket = 4 * (octave - 1) + static_cast<size_t>((us >> (octave - 2)) & 3);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }

 private:
  std::array<uint64_t, kBuckets> counts_{};
  uint64_t count_ = 0;
  uint64_t sum_us_ = 0;
};
static_assert(LatencyHistogram::BucketOf(3) == 3 && LatencyHistogram::BucketOf(4) == 4);
static_assert(LatencyHistogram::UpperUs(4) == 4 && LatencyHistogram::UpperUs(8) == 9);
static_assert(LatencyHistogram::BucketOf(1000) == LatencyHistogram::BucketOf(1023));

}  // namespace kvartal
