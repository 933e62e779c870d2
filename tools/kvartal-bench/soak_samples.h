// What a process and its files take, sampled over time, and whether that grows: the last quarter against the first.
// Pure but for TakeSample, which reads /proc and the file system.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/status.h"

namespace kvartal::bench {

struct SoakSample {
  double rss_mib = 0;    // resident, arenas (shared memory) left out
  double shmem_mib = 0;  // of arenas
  double fds = 0;
  double disk_mib = 0;  // allocated to the data file and everything named like it (its catalog)
};
// `data_file` and whatever lies beside it and begins with its name.
absl::StatusOr<SoakSample> TakeSample(pid_t pid, const std::string& data_file);

// Of one measure.
struct Growth {
  double first = 0, last = 0;  // medians of the first and the last quarter
  double max = 0;
};
Growth GrowthOf(const std::vector<SoakSample>& samples, double SoakSample::* measure);
// At most `slack` more, in the measure's own unit, than the first quarter had.
inline bool Flat(const Growth& growth, double slack) { return growth.last <= growth.first + slack; }

}  // namespace kvartal::bench
