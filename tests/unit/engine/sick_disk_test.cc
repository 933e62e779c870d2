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
  // A read that failed says nothing of what is on the disk.
  for (uint64_t i = 0; i < kDeviceErrorsOfflineMax; ++i) EXPECT_TRUE(LookupAndLoad("a/p", ns, Chain(1 + i, 1)).lost);
  EXPECT_EQ(engine_->stats().nvme_state, tier::DeviceState::kOffline);
  const std::vector<BlockKey> all = Chain(1, 40);
  EXPECT_EQ(Matched(ns, all), 0u);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, all.size());
  engine_->CheckInvariants();
  // DRAM goes on.
  EXPECT_EQ(Store("a/p", ns, Chain(100, 4)), 4u);
  EXPECT_EQ(Matched(ns, Chain(100, 4)), 4u);

  AdvanceMs(kDeviceErrorWindowMs + kTickMs);
  EXPECT_EQ(engine_->stats().nvme_state, tier::DeviceState::kHealthy);
  const Loaded loaded = LookupAndLoad("a/p", ns, all);
  EXPECT_EQ(loaded.count, all.size());
  EXPECT_EQ(loaded.wrong, 0u);
  engine_->CheckInvariants();
}

TEST_F(SickDiskTest, ABlockIsGivenUpWhenItsPlaceFailsAgainAndAgain) {
  const NamespaceId ns = StartWithBlocksOnNvme();
  const std::vector<BlockKey> block = Chain(1, 1);
  for (int round = 0; round < 3; ++round) {
    file_->FaultNext(DiskFault::kIoError, kReadErrorsPerBlockMax - 1);
    for (int i = 0; i < kReadErrorsPerBlockMax - 1; ++i) EXPECT_TRUE(LookupAndLoad("a/p", ns, block).lost);
    EXPECT_EQ(StatsOf("a/p").durable_blocks, 40u);
    // In a row: one that goes well starts the count anew.
    EXPECT_EQ(LookupAndLoad("a/p", ns, block).count, 1u);
    Restart();
    ASSERT_EQ(Open("a/p"), ns);
  }
  file_->FaultNext(DiskFault::kIoError, kReadErrorsPerBlockMax);
  for (int i = 0; i < kReadErrorsPerBlockMax; ++i) EXPECT_TRUE(LookupAndLoad("a/p", ns, block).lost);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 39u);
  EXPECT_EQ(Matched(ns, block), 0u);
  EXPECT_EQ(Store("a/p", ns, block), 1u);
  engine_->CheckInvariants();
}

TEST_F(SickDiskTest, WhatIsStoredAnewWhileItsDiskIsOfflineIsKeptThereAllTheSame) {
  const NamespaceId ns = StartWithBlocksOnNvme();
  file_->SetOverdue(1);
  // Stored anew, given up, and still being filled when the disk comes back.
  EXPECT_EQ(Store("a/p", ns, Chain(1, 4)), 4u);
  const auto aborted = Reserve(kGroup, ns, Chain(5, 4));
  for (const ReservedBlock& block : aborted) EXPECT_TRUE(engine_->Abort(kGroup, block.reservation));
  const auto filling = Reserve(kGroup, ns, Chain(9, 4));
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 40u);
  EXPECT_EQ(Matched(ns, Chain(1, 40)), 4u) << "in memory; the rest is a miss";
  EXPECT_EQ(durable_.size(), 44u) << "those that were stored anew are as durable as they were";
  engine_->CheckInvariants();

  file_->SetOverdue(0);
  EXPECT_EQ(Matched(ns, Chain(1, 40)), 8u) << "what is being filled is not visible";
  AdvanceMs(2 * kTimerBusyTicks * kTickMs);  // nor does a timer touch it
  for (const ReservedBlock& block : filling) {
    ASSERT_EQ(block.outcome, ReserveOutcome::kGranted);
    EXPECT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
  }
  EXPECT_EQ(Matched(ns, Chain(1, 40)), 40u);
  engine_->CheckInvariants();
  Restart();
  const Loaded loaded = LookupAndLoad("a/p", Open("a/p"), Chain(1, 40));
  EXPECT_EQ(loaded.count, 40u);
  EXPECT_EQ(loaded.wrong, 0u);
}

TEST_F(SickDiskTest, APinnedBlockCanBeStoredAnewWhileItsDiskIsOfflineAndStaysPinned) {
  policy::TenantRules rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.tier(TierKind::kNvme).guarantee_bytes = 64 * kMiB;
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  Restart();
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Pin(ns, Chain(1, 4), 60'000), policy::Refusal::kNone);
  file_->SetOverdue(1);
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 0u);
  EXPECT_EQ(Store("a/p", ns, Chain(1, 4)), 4u);
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 4u);
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 4u);
  engine_->CheckInvariants();
}

TEST_F(SickDiskTest, ALimitThatIsLoweredTakesNothingThatIsBeingFilledBesideAKeptCopy) {
  policy::TenantRules rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.tier(TierKind::kNvme).guarantee_bytes = 64 * kMiB;
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  Restart();
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Pin(ns, Chain(1, 4), 60'000), policy::Refusal::kNone);
  file_->SetOverdue(1);
  const auto filling = Reserve(kGroup, ns, Chain(1, 4));
  for (const TierKind tier : kAllTiers) rules_[0].tier(tier) = {};
  engine_->ApplyPolicy(Table());
  AdvanceMs(1000);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 4u);
  for (const ReservedBlock& block : filling) {
    ASSERT_EQ(block.outcome, ReserveOutcome::kGranted);
    EXPECT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
  }
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 4u) << "though above the limit nobody leases them";
  engine_->CheckInvariants();
  AdvanceMs(1000);  // then it does
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
}

// Its age counts from its first commit, wherever it is stored again.
TEST_F(SickDiskTest, StoringItAnewMakesABlockNoYounger) {
  policy::TenantRules rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.max_age_ms = 10'000;
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 4));
  AdvanceMs(5'000);
  Restart();
  const NamespaceId ns = Open("a/p");
  file_->SetOverdue(1);
  EXPECT_EQ(Store("a/p", ns, Chain(1, 4)), 4u);
  file_->SetOverdue(0);
  AdvanceMs(4'000);
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 4u);
  AdvanceMs(2'000);
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 0u);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
}

// Its tenant is shut out while it is dropped: not for as long as a disk hangs.
TEST_F(SickDiskTest, ADropThatTheDiskKeepsFromItsEndLetsTheTenantGoOnAndIsFinishedLater) {
  const NamespaceId before = StartWithBlocksOnNvme();
  Store("a/p", before, Chain(41, 4));
  const TenantId old = engine_->FindTenant("a/p");
  engine_->CloseNamespace(before);
  file_->Hold();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(old, [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  AdvanceMs(int64_t{kDropStuckTicks} * kTickMs - 1000);
  EXPECT_FALSE(dropped.has_value());
  AdvanceMs(2000);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_TRUE(absl::IsUnavailable(dropped->status())) << dropped->status();
  EXPECT_TRUE(receipts_.empty()) << "nothing is certified";

  EXPECT_NE(engine_->FindTenant("a/p"), old);
  const NamespaceId ns = Open("a/p");
  EXPECT_EQ(Matched(ns, Chain(1, 44)), 0u);
  EXPECT_EQ(Store("a/p", ns, Chain(3, 4)), 4u) << "the same keys, and new blocks";
  EXPECT_EQ(Matched(ns, Chain(3, 4)), 4u);
  EXPECT_EQ(StatsOf("a/p").tiers[TierIndex(TierKind::kDram)].limit_bytes, 64 * kMiB);
  engine_->CheckInvariants();

  file_->Release();
  AdvanceMs(3000);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].unerased_blocks, 0u);
  EXPECT_EQ(receipts_[0].blocks, 44u);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  EXPECT_EQ(PagesOnDisk(KeyOf(44)), 0u);
  EXPECT_EQ(Matched(ns, Chain(3, 4)), 4u);
  EXPECT_EQ(engine_->stats().tenants.size(), 1u) << "what was its past is forgotten";
  engine_->CheckInvariants();
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(3, 4)), 4u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 1)), 0u);
}

// And across a restart, when the disk comes back no sooner.
TEST_F(SickDiskTest, ADropThatTheDiskKeptFromItsEndIsFinishedByTheNextLife) {
  StartWithBlocksOnNvme();
  file_->Hold();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  AdvanceMs(int64_t{kDropStuckTicks + 10} * kTickMs);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(Store("a/p", Open("a/p"), Chain(3, 4)), 4u);
  Restart();
  AdvanceMs(3000);
  for (uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(PagesOnDisk(KeyOf(i)), 0u) << i;
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_.back().unerased_blocks, 0u);
  EXPECT_EQ(receipts_.back().blocks, 40u);
}

// A recovery takes as long as it takes.
TEST_F(SickDiskTest, ADropThatWaitsForALongRecoveryIsNotTakenForOneThatHangs) {
  StartWithBlocksOnNvme();
  recovers_at_once_ = false;
  Restart();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  for (uint32_t tick = 0; tick < kDropStuckTicks + 100; ++tick) {
    clock_.AdvanceMs(kTickMs);
    engine_->Tick();
  }
  AdvanceMs(3000);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_TRUE(dropped->ok()) << dropped->status();
}

// Whoever asked for the drop keeps the name shut until it is answered.
TEST_F(SickDiskTest, ADropThatHangsIsAnsweredThoughThePolicyIsGoneMeanwhile) {
  StartWithBlocksOnNvme();
  file_->Hold();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  AdvanceMs(1000);
  rules_[0].uid = "made anew";
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Store("a/p", Open("a/p"), Chain(3, 4)), 4u);
  AdvanceMs(int64_t{kDropStuckTicks} * kTickMs);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_TRUE(absl::IsUnavailable(dropped->status())) << dropped->status();
  EXPECT_NE(dropped->status().message().find("nothing more could be erased in 30 s"), absl::string_view::npos);
  file_->Release();
  AdvanceMs(3000);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 40u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(3, 4)), 4u);
  engine_->CheckInvariants();
}

TEST_F(SickDiskTest, APolicyThatComesBackWhileItsRemovalHangsIsLetIn) {
  options_.removed_grace_ms = 5000;
  StartWithBlocksOnNvme();
  const std::vector<policy::TenantRules> rules = std::exchange(rules_, {});
  engine_->ApplyPolicy(Table());
  file_->Hold();
  AdvanceMs(6000);
  rules_ = rules;
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 40)), 0u) << "it is being erased";
  EXPECT_EQ(Store("a/p", Open("a/p"), Chain(3, 4)), 0u);
  EXPECT_TRUE(begun_anew_.empty());
  AdvanceMs(int64_t{kDropStuckTicks + 10} * kTickMs);
  EXPECT_EQ(begun_anew_, std::vector<std::string>{"a/p"}) << "its sessions are of the one it was";
  EXPECT_EQ(Store("a/p", Open("a/p"), Chain(3, 4)), 4u);
  file_->Release();
  AdvanceMs(3000);
  EXPECT_EQ(Matched(Open("a/p"), Chain(3, 4)), 4u);
  EXPECT_EQ(PagesOnDisk(KeyOf(40)), 0u);
  engine_->CheckInvariants();
}

// It has its entry already.
TEST_F(SickDiskTest, AtTheEntryCapWhatIsStoredAnewMakesNoRoomForItself) {
  policy::TenantRules rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.max_entries = 41;  // a start wants room for a parent, too
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 40));
  Pump();
  Restart();
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(100, 1)), 1u);
  ASSERT_EQ(StatsOf("a/p").entries, 41u);
  file_->SetOverdue(1);
  EXPECT_EQ(Store("a/p", ns, Chain(1, 4)), 4u);
  EXPECT_EQ(StatsOf("a/p").entries, 41u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).drop(policy::DropReason::kEntryCap).count, 0u);
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
