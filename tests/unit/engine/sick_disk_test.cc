// A disk that fails again and again, or hangs: its blocks are misses for as long as that lasts, and no longer.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using testing::DiskFault;

class SickDiskTest : public EngineTest {
 protected:
  // 40 blocks on NVMe alone.
  NamespaceId StartWithBlocksOnNvme() {
    Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
    Store("a/p", Open("a/p"), Chain(1, 40));
    Pump();
    Restart();
    return Open("a/p");
  }
};

TEST_F(SickDiskTest, WhatLiesOnADiskThatIsOfflineIsAMissAndIsThereAgainLater) {
  const NamespaceId ns = StartWithBlocksOnNvme();
  file_->FaultNext(DiskFault::kIoError, kDeviceErrorsOfflineMax);
  // Those that were read and failed are lost; the others are left alone.
  for (uint64_t i = 0; i < kDeviceErrorsOfflineMax; ++i) EXPECT_TRUE(LookupAndLoad("a/p", ns, Chain(1 + i, 1)).lost);
  EXPECT_EQ(engine_->stats().nvme_state, tier::DeviceState::kOffline);
  const std::vector<BlockKey> rest = Chain(1 + kDeviceErrorsOfflineMax, 40 - kDeviceErrorsOfflineMax);
  EXPECT_EQ(Matched(ns, rest), 0u);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, rest.size());
  engine_->CheckInvariants();
  // DRAM goes on.
  EXPECT_EQ(Store("a/p", ns, Chain(100, 4)), 4u);
  EXPECT_EQ(Matched(ns, Chain(100, 4)), 4u);

  AdvanceMs(kDeviceErrorWindowMs + kTickMs);
  EXPECT_EQ(engine_->stats().nvme_state, tier::DeviceState::kHealthy);
  const Loaded loaded = LookupAndLoad("a/p", ns, rest);
  EXPECT_EQ(loaded.count, rest.size());
  EXPECT_EQ(loaded.wrong, 0u);
  engine_->CheckInvariants();
}

TEST_F(SickDiskTest, ADiskThatHangsKeepsNobodyElseWaiting) {
  const NamespaceId ns = StartWithBlocksOnNvme();
  file_->FaultNext(DiskFault::kNeverCompletes);
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 1), 0, 0, &places);
  ASSERT_EQ(places.size(), 1u);
  std::optional<CacheEngine::LoadResult> hung;
  engine_->Load({.ns = ns, .entries = {places[0].entry}},
                [&](CacheEngine::LoadResult result) { hung = std::move(result); });
  Pump();
  EXPECT_FALSE(hung.has_value());
  // Found before it was known to hang, loaded after: refused, not lost, and at once.
  std::vector<BlockPlace> others;
  engine_->Lookup(ns, Chain(2, 1), 0, 0, &others);
  ASSERT_EQ(others.size(), 1u);
  file_->SetOverdue(1);
  std::optional<CacheEngine::LoadResult> refused;
  engine_->Load({.ns = ns, .entries = {others[0].entry}},
                [&](CacheEngine::LoadResult result) { refused = std::move(result); });
  Pump();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->reason, policy::Refusal::kTierSick);
  EXPECT_EQ(Matched(ns, Chain(3, 8)), 0u);
  file_->SetOverdue(0);
  file_->FailLost();
  Pump();
  ASSERT_TRUE(hung.has_value());
  EXPECT_TRUE(hung->read_failed);
  engine_->Release(Holds(places));
  engine_->Release(Holds(others));
  EXPECT_EQ(Matched(ns, Chain(2, 8)), 8u);
  engine_->CheckInvariants();
}

TEST_F(SickDiskTest, ADiskThatTakesNoWritesDoesNotStopEvictionAboveIt) {
  Start({Rules("a/p", 8 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  file_->FaultNext(DiskFault::kIoError, 1'000'000);
  // Four times what fits in memory.
  for (uint64_t first = 1; first <= 128; first += 8) EXPECT_EQ(Store("a/p", ns, Chain(first, 8)), 8u) << first;
  EXPECT_EQ(Matched(ns, Chain(121, 8)), 8u) << "the newest are there";
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 0u);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
