#include "tools/kvartal-bench/stats.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvartal::bench {

double Percentile(std::vector<double> samples, double percent) {
  if (samples.empty()) return 0;
  const double rank = std::ceil(percent / 100 * static_cast<double>(samples.size()));
  const size_t index = static_cast<size_t>(std::clamp(rank - 1, 0.0, static_cast<double>(samples.size() - 1)));
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

double Median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

double RatioRounds::MedianRatio() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(measured.size(), ceiling.size()); ++i) ratios.push_back(measured[i] / ceiling[i]);
  return Median(std::move(ratios));
}

absl::StatusOr<RatioRounds> Interleave(int rounds, absl::FunctionRef<absl::StatusOr<double>()> measure,
                                       absl::FunctionRef<absl::StatusOr<double>()> ceiling) {
  RatioRounds out;
  for (int round = 0; round < rounds; ++round) {
    for (int turn = 0; turn < 2; ++turn) {
      const bool measure_now = (round + turn) % 2 == 0;
      KV_ASSIGN_OR_RETURN(const double value, measure_now ? measure() : ceiling());
      (measure_now ? out.measured : out.ceiling).push_back(value);
    }
  }
  return out;
}

}  // namespace kvartal::bench
