// What a GPU's driver takes for each step of sharing memory, and how fast plain copies are: one line of JSON. A part of
// check.sh. usage: gpu_probe LIBRARY
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "daemon/device/gpu_driver.h"
#include "daemon/device/gpu_stream.h"

namespace kvartal::device {
namespace {

constexpr int kRepeats = 20;

int64_t NowNs() { return SystemClock().MonotonicNs(); }

double MedianOf(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// Microseconds of each step, by its name.
class Steps {
 public:
  template <typename Step>
  auto Time(const std::string& name, Step step) {
    const int64_t start = NowNs();
    auto result = step();
    samples_[name].push_back(static_cast<double>(NowNs() - start) / 1e3);
    return result;
  }
  nlohmann::json MedianUs() const {
    nlohmann::json medians;
    for (const auto& [name, samples] : samples_) medians[name] = MedianOf(samples);
    return medians;
  }

 private:
  std::map<std::string, std::vector<double>> samples_;
};

absl::StatusOr<nlohmann::json> Sharing(const GpuDriver& driver, uint64_t bytes) {
  Steps steps;
  for (int i = 0; i < kRepeats; ++i) {
    KV_ASSIGN_OR_RETURN(GpuMemory memory, steps.Time("create", [&] { return driver.Allocate(0, bytes); }));
    KV_ASSIGN_OR_RETURN(const UniqueFd fd, steps.Time("export", [&] { return memory.Export(); }));
    KV_ASSIGN_OR_RETURN(GpuMemory imported, steps.Time("import", [&] { return driver.Import(fd.get(), bytes); }));
    KV_ASSIGN_OR_RETURN(auto mapping,
                        steps.Time("map", [&] { return GpuMapping::Map(imported, 0, GpuAccess::kReadWrite); }));
    steps.Time("unmap", [&] {
      const GpuMapping ended = std::move(mapping);
      return true;
    });
  }
  return steps.MedianUs();
}

absl::StatusOr<nlohmann::json> Copies(const GpuDriver& driver, uint64_t bytes) {
  KV_ASSIGN_OR_RETURN(const GpuContext context, GpuContext::Open(driver, 0));
  KV_ASSIGN_OR_RETURN(const GpuMemory memory, driver.Allocate(0, 2 * bytes));
  KV_ASSIGN_OR_RETURN(const GpuMapping mapping, GpuMapping::Map(memory, 0, GpuAccess::kReadWrite));
  KV_ASSIGN_OR_RETURN(GpuStream stream, GpuStream::Open(context, GpuPriority::kDemand));
  std::vector<uint8_t> host(bytes, 0x5a);
  const std::map<std::string, std::function<absl::Status()>> kinds = {
      {"to_gpu", [&] { return stream.CopyToGpu(mapping.address(), host.data(), bytes); }},
      {"to_host", [&] { return stream.CopyToHost(host.data(), mapping.address(), bytes); }},
      {"within_gpu", [&] { return stream.CopyWithinGpu(mapping.address() + bytes, mapping.address(), bytes); }},
      {"fill", [&] { return stream.Fill(mapping.address(), 0, bytes); }}};
  nlohmann::json rates;
  for (const auto& [name, start] : kinds) {
    std::vector<double> samples;
    for (int i = 0; i < kRepeats; ++i) {
      const int64_t start_ns = NowNs();
      KV_RETURN_IF_ERROR(start());
      KV_RETURN_IF_ERROR(stream.Wait());
      samples.push_back(static_cast<double>(bytes) / static_cast<double>(NowNs() - start_ns));
    }
    rates[name] = MedianOf(samples);
  }
  return rates;
}

absl::StatusOr<nlohmann::json> Probe(const std::string& library) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<GpuDriver> driver, GpuDriver::Load(library));
  if (driver->gpus().empty()) return absl::NotFoundError("the driver shows no GPU");
  const GpuInfo& gpu = driver->gpus()[0];
  nlohmann::json found = {{"simulated", driver->simulated()},
                          {"cuda", driver->version()},
                          {"name", gpu.name},
                          {"uuid", gpu.uuid},
                          {"memory_bytes", gpu.memory_bytes},
                          {"granularity_bytes", gpu.granularity_bytes},
                          {"shares_by_fd", gpu.shares_by_fd}};
  for (const uint64_t mib : {2, 64, 256, 1024}) {
    if (3 * mib * kMiB > gpu.memory_bytes) continue;
    KV_ASSIGN_OR_RETURN(found["median_us"][std::to_string(mib) + "_mib"], Sharing(*driver, mib * kMiB));
    KV_ASSIGN_OR_RETURN(found["pageable_gb_per_s"][std::to_string(mib) + "_mib"], Copies(*driver, mib * kMiB));
  }
  return found;
}

}  // namespace
}  // namespace kvartal::device

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: gpu_probe LIBRARY\n";
    return 2;
  }
  const auto found = kvartal::device::Probe(argv[1]);
  if (!found.ok()) {
    std::cerr << "gpu_probe: " << found.status() << "\n";
    return 1;
  }
  std::cout << found->dump() << "\n";
}
