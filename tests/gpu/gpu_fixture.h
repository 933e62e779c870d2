// A node of simulated GPUs for a test, or, with KVARTAL_GPU_LIBRARY, the GPUs that are there: the cases of the contract
// run on both.
// Confined to the thread of the test.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/units.h"
#include "daemon/device/gpu_driver.h"
#include "daemon/device/gpu_stream.h"

namespace kvartal::device {

constexpr uint64_t kSimulatedMemoryMiB = 64;
constexpr uint64_t kSimulatedContextMiB = 4;

inline std::string GpuLibrary() {
  const char* const real = std::getenv("KVARTAL_GPU_LIBRARY");
  return real != nullptr ? real : KVARTAL_FAKE_CUDA_LIBRARY;
}

// The folder that stands for the node's GPU memory, for all tests of one process and its children: the library reads
// its setting once.
class SimulatedNode : public ::testing::Environment {
 public:
  void SetUp() override {
    std::string pattern = "/dev/shm/kvartal-gpus-XXXXXX";
    KV_CHECK(::mkdtemp(pattern.data()) != nullptr);
    dir_ = pattern;
    const std::string setting = absl::StrCat("dir=", dir_, ";gpus=4;visible=2,0;memory_mib=", kSimulatedMemoryMiB,
                                             ";context_mib=", kSimulatedContextMiB);
    ::setenv("KVARTAL_FAKE_CUDA", setting.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

 private:
  std::string dir_;
};

class GpuTest : public ::testing::Test {
 protected:
  GpuTest() {
    auto loaded = GpuDriver::Load(GpuLibrary());
    KV_CHECK(loaded.ok());
    driver_ = *std::move(loaded);
  }
  ~GpuTest() override {
    if (driver_->simulated()) Inject("");
  }

  // Calls of the simulated driver that are to fail: tests/support/fake_cuda/README.md has the words.
  static void Inject(const char* text) {
    void* const library = ::dlopen(KVARTAL_FAKE_CUDA_LIBRARY, RTLD_NOW);
    KV_CHECK(library != nullptr);
    auto* const inject = reinterpret_cast<int (*)(const char*)>(::dlsym(library, "kvartalFakeCudaInject"));
    KV_CHECK(inject != nullptr && inject(text) == 0);
  }

  uint64_t Granule() const { return driver_->gpus()[0].granularity_bytes; }

  // Bytes of the GPU, as the host sees them after a copy. Empty when it failed.
  static std::vector<uint8_t> Read(GpuStream& stream, DeviceAddress from, size_t bytes) {
    std::vector<uint8_t> host(bytes);
    if (!stream.CopyToHost(host.data(), from, bytes).ok() || !stream.Wait().ok()) return {};
    return host;
  }

  std::unique_ptr<GpuDriver> driver_;
};

}  // namespace kvartal::device
