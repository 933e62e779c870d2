// Idle TTL: exact for lookups, bounded work a turn, right whatever the eviction order says, and across restarts and
// clocks that jump.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class ExpiryTest : public EngineTest {
 protected:
  static policy::TenantRules Idle(uint64_t dram_ttl_ms, uint64_t nvme_ttl_ms = 0) {
    auto rules = Rules("a/p", 64 * kMiB, nvme_ttl_ms == 0 ? 0 : 64 * kMiB);
    rules.ttl_ms[TierIndex(TierKind::kDram)] = dram_ttl_ms;
    rules.ttl_ms[TierIndex(TierKind::kNvme)] = nvme_ttl_ms;
    return rules;
  }
};

TEST_F(ExpiryTest, ARequestNumberOfAClientHidesNothingThatIsIdle) {
  Start({Idle(2000)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 2));
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 2), 0, /*request=*/uint64_t{1} << 60, &places);
  engine_->Release(Holds(places));
  AdvanceMs(1000);
  Store("a/p", ns, Chain(100, 2));
  AdvanceMs(1100);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 2u) << "the older ones went, the younger ones stay";
  EXPECT_EQ(Matched(ns, Chain(100, 2)), 2u);
}

TEST_F(ExpiryTest, UseMovesTheDeadlineAndIdlenessDoesNot) {
  Start({Idle(2000)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 8));
  for (int i = 0; i < 6; ++i) {
    AdvanceMs(1500);
    EXPECT_EQ(Matched(ns, Chain(1, 4)), 4u) << "after " << i;
  }
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 4u);
  AdvanceMs(1900);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 4u);
  AdvanceMs(200);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).drop(policy::DropReason::kIdle).count, 8u);
  engine_->CheckInvariants();
}

TEST_F(ExpiryTest, ABlockReadInPlaceIsInUseAndItsIdleTimeStartsAtTheRelease) {
  Start({Idle(1000)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 1));
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 1), 0, 0, &places);
  AdvanceMs(5000);
  EXPECT_EQ(Matched(ns, Chain(1, 1)), 1u);
  engine_->Release(Holds(places));
  AdvanceMs(900);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 1u);
  AdvanceMs(1300);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u);
}

TEST_F(ExpiryTest, APromotedCopyHasTheTtlOfItsTier) {
  Start({Idle(1000, 60'000)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 2));
  Pump();
  AdvanceMs(5000);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u);
  EXPECT_EQ(LookupAndLoad("a/p", ns, Chain(1, 2)).count, 2u);
  AdvanceMs(900);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 2u);
  AdvanceMs(300);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u) << "long before the one of NVMe";
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 2u);
}

TEST_F(ExpiryTest, ATimeThatAPolicyShortensHoldsForWhatIsThere) {
  Start({Idle(3'600'000)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 4));
  rules_[0].ttl_ms[TierIndex(TierKind::kDram)] = 1000;
  AdvanceMs(2000);
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 0u) << "at once for a lookup";
  AdvanceMs(200);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u);
}

TEST_F(ExpiryTest, AWaveIsBoundedWorkATurnAndServedToNobody) {
  auto rules = Rules("a/p", kTestDramBytes - 2 * kMiB);
  rules.ttl_ms[TierIndex(TierKind::kDram)] = 2000;
  Start({rules}, 0);
  constexpr uint64_t kBlocks = 50'000;
  constexpr uint64_t kDropsPerTurn = kTimerWorkPerTurn / kTimerDropWork;
  const NamespaceId ns = Open("a/p", 1, 1, 4 * kKiB);
  for (uint64_t first = 0; first < kBlocks; first += 1000) {
    for (const ReservedBlock& block : Reserve(kGroup, ns, Chain(first, 1000))) {
      ASSERT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
    }
  }
  clock_.AdvanceMs(2500);
  uint64_t left = kBlocks;
  for (uint64_t turn = 0; turn < kBlocks / kDropsPerTurn * 5 / 4 && left > 0; ++turn) {
    engine_->Tick();
    const uint64_t now_left = TierStatsOf("a/p", TierKind::kDram).blocks;
    ASSERT_LE(left - now_left, kDropsPerTurn) << "turn " << turn;
    left = now_left;
    ASSERT_EQ(Matched(ns, Chain(kBlocks - 1, 1)), 0u) << "what waits is not served";
  }
  EXPECT_EQ(left, 0u);
  // The entries above what went last.
  for (uint64_t turn = 0; turn < kBlocks / kDropsPerTurn && engine_->behind(); ++turn) engine_->CatchUp();
  EXPECT_FALSE(engine_->behind());
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  Pump();
  AdvanceMs(2000);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 0u);
  engine_->CheckInvariants();
}

// Only its last block is used: of the others, whose time is over, the entries stay, for as long as that is there.
class LongChainTest : public ExpiryTest {
 protected:
  static constexpr uint64_t kBlocks = 3000;
  static constexpr int64_t kTtlMs = 2000;

  // Until nothing but the chain of entries is left, and the first part of it has gone.
  void StartAndExpire() {
    auto rules = Rules("a/p", 64 * kMiB);
    rules.ttl_ms[TierIndex(TierKind::kDram)] = kTtlMs;
    Start({rules}, 0);
    ns_ = Open("a/p", 1, 1, 4 * kKiB);
    for (const ReservedBlock& block : Reserve(kGroup, ns_, Chain(1, kBlocks)))
      ASSERT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
    for (int64_t ms = 0; ms < 2 * kTtlMs; ms += kTtlMs / 2) {
      AdvanceMs(kTtlMs / 2);
      ASSERT_EQ(Matched(ns_, Chain(kBlocks, 1)), 1u);
    }
    ASSERT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 1u);
    ASSERT_EQ(StatsOf("a/p").entries, kBlocks);
    for (int64_t ms = 0; ms < 2 * kTtlMs && TierStatsOf("a/p", TierKind::kDram).blocks > 0; ms += kTickMs)
      AdvanceMs(kTickMs);
    ASSERT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u);
    engine_->CheckInvariants();
  }

  NamespaceId ns_;
};

TEST_F(LongChainTest, WhatTheLastBlockOfALongChainLeavesGoesInBoundedSteps) {
  StartAndExpire();
  constexpr uint64_t kErasedPerTurn = kTimerWorkPerTurn / kTimerDropWork;
  uint64_t left = StatsOf("a/p").entries;
  EXPECT_GE(left + 2 * kErasedPerTurn, kBlocks);
  while (left > 0) {
    ASSERT_TRUE(engine_->behind());
    engine_->CatchUp();
    const uint64_t now_left = StatsOf("a/p").entries;
    ASSERT_LT(now_left, left);
    ASSERT_LE(left - now_left, 2 * kErasedPerTurn);
    left = now_left;
    engine_->CheckInvariants();
  }
  EXPECT_FALSE(engine_->behind());
  EXPECT_EQ(engine_->stats().timers, 0u);
}

TEST_F(LongChainTest, NothingGoesForALoweredCapThatEmptyEntriesWillMeet) {
  auto rules = Rules("a/p", 64 * kMiB);
  rules.ttl_ms[TierIndex(TierKind::kDram)] = kTtlMs;
  Start({rules}, 0);
  ns_ = Open("a/p", 1, 1, 4 * kKiB);
  for (const ReservedBlock& block : Reserve(kGroup, ns_, Chain(1, kBlocks)))
    ASSERT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
  AdvanceMs(kTtlMs / 2);
  ASSERT_EQ(Matched(ns_, Chain(kBlocks, 1)), 1u);
  AdvanceMs(kTtlMs * 3 / 4);
  while (engine_->behind()) engine_->CatchUp();
  ASSERT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 1u);
  constexpr uint64_t kOthers = 100;
  for (uint64_t i = 0; i < kOthers; ++i) {
    const auto blocks = Reserve(kGroup, ns_, Chain(10'000 + i, 1));
    ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  }
  ASSERT_EQ(StatsOf("a/p").entries, kBlocks + kOthers);
  // Its least valuable block is the end of that chain.
  rules_[0].max_entries = 2 * kOthers;
  engine_->ApplyPolicy(Table());
  for (int turn = 0; turn < 100 && StatsOf("a/p").entries > kOthers; ++turn) {
    clock_.AdvanceMs(kTickMs);
    engine_->Tick();
  }
  EXPECT_EQ(StatsOf("a/p").entries, kOthers);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, kOthers);
  engine_->CheckInvariants();
}

TEST_F(LongChainTest, WhatIsToBeErasedMayBeStoredAnew) {
  StartAndExpire();
  const uint64_t left = StatsOf("a/p").entries;
  ASSERT_GT(left, 1u);
  const auto blocks = Reserve(kGroup, ns_, Chain(1, left));
  EXPECT_EQ(StatsOf("a/p").entries, left) << "the same entries";
  engine_->CheckInvariants();
  AdvanceMs(kTickMs);
  for (const ReservedBlock& block : blocks) EXPECT_TRUE(engine_->Abort(kGroup, block.reservation));
  for (int turn = 0; turn < 100 && engine_->behind(); ++turn) engine_->CatchUp();
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  engine_->CheckInvariants();
}

TEST_F(ExpiryTest, UseIsRememberedAcrossARestart) {
  Start({Idle(0, 400'000)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 4));
  Store("a/p", ns, Chain(100, 4));
  Pump();
  for (int i = 0; i < 20; ++i) {
    AdvanceMs(15'000);
    EXPECT_EQ(Matched(ns, Chain(1, 4)), 4u);
  }
  EXPECT_LE(catalog_->counts().refreshes, 4u * 8) << "at most one a period of an eighth of the TTL";
  Restart();
  AdvanceMs(150'000);
  const NamespaceId again = Open("a/p");
  EXPECT_EQ(Matched(again, Chain(100, 4)), 0u) << "idle for 450 s";
  EXPECT_EQ(Matched(again, Chain(1, 4)), 4u) << "used 150 s ago; at most 50 s of that were forgotten";
  AdvanceMs(401'000);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 0u);
  engine_->CheckInvariants();
}

TEST_F(ExpiryTest, AWallClockThatStepsInLifeChangesNothing) {
  Start({Idle(2000)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 4));
  clock_.SetWallBy(-3'600'000);
  AdvanceMs(1500);
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 4u);
  clock_.SetWallBy(int64_t{20} * 365 * 86'400'000);
  AdvanceMs(1500);
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 4u);
  AdvanceMs(2100);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u);
}

TEST_F(ExpiryTest, AWallClockSetBackAcrossARestartMakesNoBlockYounger) {
  Start({Idle(0, 600'000)});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  AdvanceMs(500'000);
  clock_.SetWallBy(-3'600'000);
  Restart();
  AdvanceMs(161'000);  // the kept date is at most a minute old
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 0u) << "500 s before and 161 s after";
}

TEST_F(ExpiryTest, AWallClockTenYearsAheadExpiresEarlyAndHarmsNothingAfterwards) {
  Start({Idle(0, 600'000)});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  clock_.SetWallBy(int64_t{10} * 365 * 86'400'000);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 0u);
  Store("a/p", Open("a/p"), Chain(200, 4));
  Pump();
  AdvanceMs(120'000);
  clock_.SetWallBy(-int64_t{10} * 365 * 86'400'000);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(200, 4)), 4u) << "dates go on from the last one kept";
  Restart();
  AdvanceMs(601'000);
  EXPECT_EQ(Matched(Open("a/p"), Chain(200, 4)), 0u);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
