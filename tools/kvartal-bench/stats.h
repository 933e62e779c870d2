// Medians, percentiles and ratios of interleaved runs.
// Stateless; any thread.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/base/status.h"

namespace kvartal::bench {

// The smallest sample that at least `percent` of all samples do not exceed (nearest rank). 0 for no samples.
double Percentile(std::vector<double> samples, double percent);
// The middle sample, the mean of the two middle ones for an even number. 0 for no samples.
double Median(std::vector<double> samples);

// What a thing reached against its ceiling, measured in turns so that both see the same weather.
struct RatioRounds {
  std::vector<double> measured;
  std::vector<double> ceiling;

  // Median of the rounds' own ratios: a slow moment that hits one round moves one ratio.
  double MedianRatio() const;
};

// Runs both `rounds` times in turns; who starts alternates. The first error ends it.
absl::StatusOr<RatioRounds> Interleave(int rounds, absl::FunctionRef<absl::StatusOr<double>()> measure,
                                       absl::FunctionRef<absl::StatusOr<double>()> ceiling);

}  // namespace kvartal::bench
