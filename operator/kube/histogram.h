// How long things took, in buckets that Prometheus adds up. A plain value.
// Invariant: what was observed is in the count, in the sum, and in each bucket whose bound it does not exceed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvartal::kube {

class Histogram {
 public:
  // Those of client-go's requests; of all of ours, so that they can be laid side by side.
  static constexpr std::array<int64_t, 12> kBoundsMs = {5,    25,   100,  250,   500,   1000,
                                                        2000, 4000, 8000, 15000, 30000, 60000};

  void Observe(int64_t ms) {
    ++count_;
    sum_ms_ += ms;
    for (size_t i = 0; i < kBoundsMs.size(); ++i) within_[i] += ms <= kBoundsMs[i];
  }
  uint64_t count() const { return count_; }
  int64_t sum_ms() const { return sum_ms_; }
  // Observations up to kBoundsMs[i].
  uint64_t within(size_t i) const { return within_[i]; }

 private:
  uint64_t count_ = 0;
  int64_t sum_ms_ = 0;
  std::array<uint64_t, kBoundsMs.size()> within_ = {};
};

}  // namespace kvartal::kube
