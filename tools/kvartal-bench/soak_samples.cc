#include "tools/kvartal-bench/soak_samples.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "tools/kvartal-bench/stats.h"

namespace kvartal::bench {
namespace {

constexpr uint64_t kStatBlockBytes = 512;

// What comes and goes meanwhile (a log that was recycled) counts as nothing.
uint64_t AllocatedBytes(const std::filesystem::path& path) {
  struct stat state{};
  return ::stat(path.c_str(), &state) == 0 ? static_cast<uint64_t>(state.st_blocks) * kStatBlockBytes : 0;
}

double DiskMib(const std::filesystem::path& data_file) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(data_file.parent_path(), error)) {
    if (!entry.path().filename().string().starts_with(data_file.filename().string())) continue;
    bytes += AllocatedBytes(entry.path());
    if (!entry.is_directory(error)) continue;
    for (auto file = std::filesystem::recursive_directory_iterator(entry.path(), error);
         file != std::filesystem::recursive_directory_iterator(); file.increment(error)) {
      bytes += AllocatedBytes(file->path());
    }
  }
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}

}  // namespace

absl::StatusOr<SoakSample> TakeSample(pid_t pid, const std::string& data_file) {
  const std::string folder = absl::StrCat("/proc/", pid);
  std::ifstream status(folder + "/status");
  SoakSample sample;
  bool found = false;
  double kib = 0;
  for (std::string word; status >> word;) {
    if ((word == "RssAnon:" || word == "RssFile:") && status >> kib) sample.rss_mib += kib / 1024;
    if (word == "RssShmem:" && status >> kib) {
      sample.shmem_mib = kib / 1024;
      found = true;
    }
  }
  if (!found) return absl::NotFoundError(absl::StrCat("cannot read ", folder, "/status: the daemon has ended"));
  std::error_code error;
  const std::filesystem::directory_iterator fds(folder + "/fd", error);
  sample.fds = static_cast<double>(std::distance(begin(fds), end(fds)));
  sample.disk_mib = DiskMib(data_file);
  return sample;
}

Growth GrowthOf(const std::vector<SoakSample>& samples, double SoakSample::* measure) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const SoakSample& sample : samples) values.push_back(sample.*measure);
  const auto quarter = static_cast<ptrdiff_t>((values.size() + 3) / 4);
  return {Median({values.begin(), values.begin() + quarter}), Median({values.end() - quarter, values.end()}),
          Percentile(values, 100)};
}

}  // namespace kvartal::bench
