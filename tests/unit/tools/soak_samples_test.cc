#include "tools/kvartal-bench/soak_samples.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/base/unique_fd.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::bench {
namespace {

std::vector<SoakSample> Series(size_t count, double start, double step) {
  std::vector<SoakSample> samples(count);
  for (size_t i = 0; i < count; ++i) samples[i].rss_mib = start + step * static_cast<double>(i);
  return samples;
}

TEST(GrowthOf, ALeakIsNotFlatAndNoiseIs) {
  const Growth leak = GrowthOf(Series(100, 50, 0.5), &SoakSample::rss_mib);
  EXPECT_GT(leak.last - leak.first, 30);
  EXPECT_FALSE(Flat(leak, 8));
  std::vector<SoakSample> noisy = Series(100, 50, 0);
  for (size_t i = 0; i < noisy.size(); i += 7) noisy[i].rss_mib += 20;
  EXPECT_TRUE(Flat(GrowthOf(noisy, &SoakSample::rss_mib), 1));
  EXPECT_EQ(GrowthOf(noisy, &SoakSample::rss_mib).max, 70);
}

TEST(GrowthOf, WhatShrinksIsFlat) { EXPECT_TRUE(Flat(GrowthOf(Series(40, 50, -1), &SoakSample::rss_mib), 0)); }

TEST(TakeSample, SeesDescriptorsMemoryAndTheFilesBesideTheDataFile) {
  const testing::ScratchDir dir;
  const std::string data_file = dir.File("nvme.dat");
  std::ofstream(data_file) << std::string(1 << 20, 'x') << std::flush;
  const auto before = TakeSample(::getpid(), data_file);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_GE(before->disk_mib, 1);
  EXPECT_GT(before->rss_mib, 1);
  std::filesystem::create_directory(data_file + ".catalog");
  std::ofstream(data_file + ".catalog/000012.log") << std::string(3 << 20, 'x') << std::flush;
  std::ofstream(dir.File("other")) << std::string(1 << 20, 'x') << std::flush;
  const UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC)), two(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto after = TakeSample(::getpid(), data_file);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NEAR(after->disk_mib - before->disk_mib, 3, 0.5);
  EXPECT_EQ(after->fds - before->fds, 2);
}

TEST(TakeSample, AProcessThatIsGoneIsAnError) { EXPECT_FALSE(TakeSample(0, "nowhere").ok()); }

}  // namespace
}  // namespace kvartal::bench
