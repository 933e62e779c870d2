// A million events without a finding; the same seed twice gives the same run; every device that lies is found out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/sim/runner.h"

namespace kvartal::sim {
namespace {

constexpr uint64_t kMillionSeeds = 80;
constexpr uint64_t kEventsPerSeed = 12'500;
static_assert(kMillionSeeds * kEventsPerSeed == 1'000'000);

// What expects no finding has to have been everywhere.
TEST(Simulator, AMillionEventsFindNothingAndReachEverySituation) {
  const SeedsResult result =
      RunSeeds(1, kMillionSeeds, kEventsPerSeed, std::max(1u, std::thread::hardware_concurrency()));
  std::printf("%s", result.coverage.Table().c_str());
  EXPECT_FALSE(result.found);
  EXPECT_THAT(result.coverage.Missing(), ::testing::IsEmpty());
}

TEST(Simulator, TheSameSeedIsTheSameRun) {
  const RunResult once = RunSeed(7, 3000);
  const RunResult again = RunSeed(7, 3000);
  EXPECT_EQ(once.event, again.event);
  EXPECT_EQ(once.log_hash, again.log_hash);
  EXPECT_NE(once.log_hash, RunSeed(8, 3000).log_hash);
}

// What the seam allows is not a fault: a record whose delete was lost is found out by its header. This is also the
// control of the tests below: without a fault they would find nothing.
TEST(Simulator, LostDeletesAreHarmless) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RunResult result = RunSeed(seed, 5000, Planted::kLosesDeletes);
    ASSERT_FALSE(result.found) << result.report;
  }
}

class PlantedFault : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedFault, IsFound) {
  constexpr uint64_t kSeeds = 60;
  // A deletion has to be forgotten, and what it was of found again: that comes late in a run.
  const uint64_t events = GetParam() == Planted::kLosesTombstones ? 8000 : 5000;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const RunResult result = RunSeedApart(seed, events, GetParam());
    if (!result.found) continue;
    std::printf("%s: found by seed %lu after %lu events\n", PlantedName(GetParam()), static_cast<unsigned long>(seed),
                static_cast<unsigned long>((seed - 1) * events + result.event));
    return;
  }
  FAIL() << PlantedName(GetParam()) << " was not found in " << kSeeds * events << " events";
}

std::string TestNameOf(const ::testing::TestParamInfo<Planted>& fault) {
  std::string name = PlantedName(fault.param);
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Devices, PlantedFault, ::testing::ValuesIn(kAllPlanted.begin(), kAllPlanted.end() - 1),
                         TestNameOf);

}  // namespace
}  // namespace kvartal::sim
