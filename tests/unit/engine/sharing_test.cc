// Space between tenants: borrowed while idle, given back on demand, guarantees kept whatever lies where and whoever
// reads it.
#include <algorithm>
#include <numeric>
#include <random>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;
using policy::Refusal;
using policy::SlaTier;

constexpr uint64_t kAll = kTestDramBytes;
constexpr size_t kAllBlocks = kAll / kTestBlockBytes;
constexpr size_t kHalfBlocks = kAllBlocks / 2;

policy::TenantRules Sharing(const std::string& name, uint64_t guarantee, uint64_t nvme_limit = 0) {
  auto rules = Rules(name, kAll, nvme_limit);
  rules.tier(TierKind::kDram).guarantee_bytes = guarantee;
  return rules;
}

class SharingTest : public EngineTest {
 protected:
  uint64_t Charged(const std::string& tenant) const { return TierStatsOf(tenant, TierKind::kDram).charged_bytes; }
  uint64_t TakenFrom(const std::string& tenant) const {
    return TierStatsOf(tenant, TierKind::kDram).drop(DropReason::kTakenByOther).count;
  }
  uint64_t Evictions(const std::string& tenant) const { return TierStatsOf(tenant, TierKind::kDram).evictions(); }

  // Starts a Reserve that may wait.
  void StartReserve(NamespaceId ns, const std::vector<BlockKey>& keys, GroupId group = kGroup) {
    answer_.reset();
    engine_->Reserve({.group = group, .ns = ns, .keys = keys},
                     [this](std::vector<ReservedBlock> blocks) { answer_ = std::move(blocks); });
    Pump();
  }

  std::vector<BlockPlace> Lease(NamespaceId ns, const std::vector<BlockKey>& keys) {
    std::vector<BlockPlace> places;
    engine_->Lookup(ns, keys, 0, 0, &places);
    return places;
  }

  std::optional<std::vector<ReservedBlock>> answer_;
};

// The Reserve waits for its second block so long that its first one is ended for somebody who is owed the space.
TEST_F(SharingTest, AReserveThatWaitedIsNotAnsweredWithAFillThatWasEndedMeanwhile) {
  dram_bytes_ = 4 * kMiB;
  auto a_rules = Rules("a/p", 2 * kMiB), b_rules = Rules("b/p", 4 * kMiB);
  b_rules.tier(TierKind::kDram).guarantee_bytes = 4 * kMiB;
  Start({a_rules, b_rules}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, 7)), 7u) << "one slot of the extent is free";
  rules_[0].tier(TierKind::kDram).limit_bytes = 4 * kMiB;
  engine_->ApplyPolicy(Table());
  memory_->Hold();
  StartReserve(a, Chain(100, 2));
  std::optional<std::vector<ReservedBlock>> owed;
  const auto keys = Chain(5000, 1);
  engine_->Reserve({.group = GroupId(8), .ns = b, .keys = keys},
                   [&](std::vector<ReservedBlock> blocks) { owed = std::move(blocks); });
  AdvanceMs((kFillTicksMax + 5) * kTickMs);
  ASSERT_FALSE(answer_.has_value());
  memory_->Release();
  AdvanceMs(500);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ((*answer_)[0].outcome, ReserveOutcome::kRefused);
  EXPECT_EQ((*answer_)[1].outcome, ReserveOutcome::kGranted);
  AdvanceMs(2500);  // whoever fills it may be at it still
  ASSERT_TRUE(owed.has_value());
  EXPECT_EQ((*owed)[0].outcome, ReserveOutcome::kGranted);
  engine_->CheckInvariants();
}

// It is erased and certified where it lies: nobody takes it before, and nothing of it is written to the disk any more.
TEST_F(SharingTest, WhatIsBeingErasedIsTakenByNobody) {
  Start({Sharing("a/p", 0, 64 * kMiB), Sharing("b/p", kAll)});
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, kAllBlocks)), kAllBlocks);
  Pump();
  const uint64_t written = nvme_->counters().blocks_written;
  catalog_->Hold();  // the tombstone comes first
  engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  StartReserve(b, Chain(5000, 8));
  AdvanceMs(1000);
  EXPECT_EQ(TakenFrom("a/p"), 0u);
  EXPECT_EQ(nvme_->counters().blocks_written, written);
  catalog_->Release();
  AdvanceMs(3000);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ((*answer_)[7].outcome, ReserveOutcome::kGranted);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, kAllBlocks);
}

TEST_F(SharingTest, IdleSpaceIsBorrowedAndGivenBackAtOnce) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, kAllBlocks)), kAllBlocks) << "nobody else wants it";
  EXPECT_EQ(Charged("a/p"), kAll);
  ASSERT_EQ(Store("b/p", b, Chain(5000, kHalfBlocks)), kHalfBlocks);
  EXPECT_EQ(Charged("a/p"), kAll / 2);
  EXPECT_EQ(Matched(a, Chain(1, kAllBlocks)), kHalfBlocks) << "the tail of the chain went, not its middle";
  EXPECT_EQ(Matched(b, Chain(5000, kHalfBlocks)), kHalfBlocks);
  const policy::Tally taken = TierStatsOf("a/p", TierKind::kDram).drop(DropReason::kTakenByOther);
  EXPECT_EQ(taken.count, kHalfBlocks);
  EXPECT_EQ(taken.last_taker, engine_->FindTenant("b/p"));
  EXPECT_EQ(Evictions("b/p"), 0u);
  // Now both have what they are promised: each makes room for itself.
  ASSERT_EQ(Store("b/p", b, Chain(9000, 64)), 64u);
  ASSERT_EQ(Store("a/p", a, Chain(9000, 64)), 64u);
  EXPECT_EQ(TakenFrom("b/p"), 0u);
  EXPECT_EQ(TakenFrom("a/p"), kHalfBlocks);
  engine_->CheckInvariants();
}

TEST_F(SharingTest, AVictimLosesByValueWhereverItsBlocksLie) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  for (size_t i = 0; i < kAllBlocks; ++i) ASSERT_EQ(Store("a/p", a, Chain(1 + i, 1)), 1u);
  // Used in an order that has nothing to do with the extents they lie in.
  std::vector<uint64_t> order(kAllBlocks);
  std::iota(order.begin(), order.end(), 1);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
  for (const uint64_t number : order) ASSERT_EQ(Matched(a, Chain(number, 1)), 1u);
  ASSERT_EQ(Store("b/p", b, Chain(5000, kHalfBlocks)), kHalfBlocks);
  for (size_t i = 0; i < kHalfBlocks; ++i) ASSERT_EQ(Matched(a, Chain(order[i], 1)), 0u) << "oldest, number " << i;
  for (size_t i = kHalfBlocks; i < kAllBlocks; ++i) {
    const Loaded loaded = LookupAndLoad("a/p", a, Chain(order[i], 1));
    ASSERT_EQ(loaded.count, 1u) << "youngest, number " << i;
    ASSERT_EQ(loaded.wrong, 0u) << "moved with its bytes";
  }
  engine_->CheckInvariants();
}

// The large blocks would be fewer to move, and are worth more.
TEST_F(SharingTest, AVictimOfTwoSlotSizesGivesExtentsOfItsLeastValuableBlocks) {
  dram_bytes_ = 16 * kMiB;
  auto a_rules = Rules("a/p", 8 * kMiB), b_rules = Rules("b/p", dram_bytes_);
  b_rules.tier(TierKind::kDram).guarantee_bytes = 2 * kMiB;
  Start({a_rules, b_rules}, 0);
  const NamespaceId small = Open("a/p"), large = Open("a/p", 2, 1, 2 * kMiB), b = Open("b/p");
  ASSERT_EQ(Store("a/p", large, Chain(500, 4)), 4u) << "each in an extent of its own";
  rules_[0].tier(TierKind::kDram).limit_bytes = dram_bytes_;
  engine_->ApplyPolicy(Table());
  for (size_t i = 0; i < 32; ++i) ASSERT_EQ(Store("a/p", small, Chain(1 + i, 1)), 1u);
  ASSERT_EQ(Charged("a/p"), dram_bytes_);
  for (size_t i = 0; i < 32; ++i) ASSERT_EQ(Matched(small, Chain(1 + i * 11 % 32, 1)), 1u);
  ASSERT_EQ(Matched(large, Chain(500, 4)), 4u);
  ASSERT_EQ(Store("b/p", b, Chain(5000, 8)), 8u);
  EXPECT_EQ(Matched(large, Chain(500, 4)), 4u);
  EXPECT_EQ(TakenFrom("a/p"), 8u);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(Matched(small, Chain(1 + i * 11 % 32, 1)), i < 8 ? 0u : 1u) << i;
  engine_->CheckInvariants();
}

TEST_F(SharingTest, AGuaranteeWaitsForLeasesOfWhatWasBorrowedAndNoLonger) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, kAllBlocks)), kAllBlocks);
  const std::vector<BlockPlace> places = Lease(a, Chain(1, kAllBlocks));
  const std::vector<Hold> holds = Holds(places);
  EXPECT_TRUE(engine_->MayRenew(holds));
  StartReserve(b, Chain(5000, 32));
  EXPECT_FALSE(answer_.has_value()) << "not refused: it waits";
  EXPECT_FALSE(engine_->MayRenew(holds)) << "and what it waits for ends at its time";
  size_t released = 0;
  for (; released < holds.size() && !answer_.has_value(); released += 16) {
    engine_->Release(std::span(holds).subspan(released, 16));
    AdvanceMs(kTickMs);
  }
  ASSERT_TRUE(answer_.has_value());
  for (const ReservedBlock& block : *answer_) EXPECT_EQ(block.outcome, ReserveOutcome::kGranted);
  ASSERT_LT(released, holds.size());
  for (size_t i = released; i < places.size(); ++i) {
    ASSERT_EQ(*Data("a/p", places[i].arena_offset), std::byte{KeyOf(1 + i).bytes[0]}) << "lease broken";
  }
  engine_->CheckInvariants();
}

// Else each extent of a guarantee could wait for a lease of its own, one after the other.
TEST_F(SharingTest, WhileAGuaranteeWaitsNobodyLeasesMoreThanItsOwn) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  for (size_t i = 0; i < kAllBlocks; ++i) ASSERT_EQ(Store("a/p", a, Chain(1 + i, 1)), 1u);
  std::vector<Hold> first, second;
  for (size_t i = 0; i < kHalfBlocks - 8; ++i) first.push_back(HoldOf(Lease(a, Chain(1 + 2 * i, 1)).at(0)));
  EXPECT_EQ(StatsOf("a/p").leased_bytes, (kHalfBlocks - 8) * kTestBlockBytes);
  StartReserve(b, Chain(5000, 32));
  ASSERT_FALSE(answer_.has_value()) << "a lease is in every extent";
  EXPECT_TRUE(engine_->stats().guarantee_waits[TierIndex(TierKind::kDram)]);
  for (size_t i = 0; i < kHalfBlocks - 8; ++i) {
    const auto places = Lease(a, Chain(2 + 2 * i, 1));
    if (!places.empty()) second.push_back(HoldOf(places[0]));
  }
  EXPECT_EQ(second.size(), 8u) << "up to its guarantee";
  EXPECT_EQ(StatsOf("a/p").leased_bytes, kAll / 2);
  EXPECT_GT(TierStatsOf("a/p", TierKind::kDram).refusal(Refusal::kOwed).count, 400u);
  engine_->Release(first);
  AdvanceMs(3 * kTickMs);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(Lease(b, Chain(5000, 32)).size(), 0u) << "being filled";
  AdvanceMs(3 * kTickMs);
  for (size_t i = 0; i < kHalfBlocks; ++i) {
    const auto places = Lease(a, Chain(3 + 2 * i, 1));
    if (!places.empty()) second.push_back(HoldOf(places[0]));
  }
  EXPECT_GT(StatsOf("a/p").leased_bytes, kAll / 4) << "nobody waits: what is borrowed may be read";
  engine_->Release(second);
  engine_->CheckInvariants();
}

// What could not be leased when it is there is not read, though there is room for it.
TEST_F(SharingTest, NorIsAnythingReadForThem) {
  Start({Sharing("a/p", 0, kTestNvmeBytes / 2), Sharing("b/p", kAll)});
  ASSERT_EQ(Store("a/p", Open("a/p"), Chain(1, 64)), 64u);
  Pump();
  Restart();
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  std::vector<Hold> holds;
  for (uint64_t i = 0; i < 128; ++i) {
    ASSERT_EQ(Store("a/p", a, Chain(1000 + i, 1)), 1u);
    if (i % 2 == 0) holds.push_back(Holds(Lease(a, Chain(1000 + i, 1))).front());
  }
  Pump();
  StartReserve(b, Chain(5000, kAllBlocks));
  ASSERT_TRUE(engine_->stats().guarantee_waits[TierIndex(TierKind::kDram)]);
  const Loaded loaded = LookupAndLoad("a/p", a, Chain(1, 64));
  EXPECT_EQ(loaded.count, 0u);
  EXPECT_EQ(loaded.reason, Refusal::kOwed);
  EXPECT_FALSE(loaded.lost);
  EXPECT_EQ(nvme_->counters().blocks_read, 0u);
  engine_->Release(holds);
  AdvanceMs(500);
  EXPECT_TRUE(answer_.has_value());
  engine_->CheckInvariants();
}

TEST_F(SharingTest, ATickThatComesLateDoesNotForgetWhoWaits) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, kAllBlocks)), kAllBlocks);
  const std::vector<Hold> holds = Holds(Lease(a, Chain(1, kAllBlocks)));
  StartReserve(b, Chain(5000, 32));
  ASSERT_FALSE(answer_.has_value());
  clock_.AdvanceMs(5 * kTickMs);
  EXPECT_FALSE(engine_->MayRenew(holds)) << "a lease renewed now would hold for ten seconds what is owed";
  engine_->Tick();
  EXPECT_FALSE(engine_->MayRenew(holds));
}

TEST_F(SharingTest, OneLeaseInEveryExtentDoesNotHoldThemAll) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  for (size_t i = 0; i < kAllBlocks; ++i) ASSERT_EQ(Store("a/p", a, Chain(1 + i, 1)), 1u);
  std::vector<Hold> holds;
  for (size_t i = 0; i < kAllBlocks; i += 64) holds.push_back(HoldOf(Lease(a, Chain(1 + i, 1)).front()));
  StartReserve(b, Chain(5000, 32));
  EXPECT_FALSE(answer_.has_value());
  // The extent that is leaving grants no lease.
  const auto owed = std::find_if(holds.begin(), holds.end(),
                                 [&](const Hold& hold) { return !engine_->MayRenew(std::span(&hold, 1)); });
  ASSERT_NE(owed, holds.end());
  EXPECT_LE(TakenFrom("a/p"), 64u) << "no more than the extent has: none helps what cannot move";
  engine_->Release(std::span(&*owed, 1));
  AdvanceMs(kTickMs);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(answer_->front().outcome, ReserveOutcome::kGranted);
}

TEST_F(SharingTest, FillsThatNobodyEndsDoNotHoldAGuarantee) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  const auto fills = Reserve(GroupId(1), a, Chain(1, kAllBlocks));
  StartReserve(b, Chain(5000, 32));
  EXPECT_FALSE(answer_.has_value());
  AdvanceMs((kFillTicksMax + 2) * kTickMs);
  EXPECT_FALSE(answer_.has_value()) << "ended, and whoever fills them may be at it still";
  AdvanceMs(2500);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(answer_->front().outcome, ReserveOutcome::kGranted);
  const size_t aborted = std::count_if(fills.begin(), fills.end(), [&](const ReservedBlock& fill) {
    return engine_->Commit(GroupId(1), fill.reservation, 0) == CommitOutcome::kNotFilling;
  });
  EXPECT_EQ(aborted, 64u) << "those of one extent, no more";
  EXPECT_EQ(fills_ended_.size(), aborted) << "each is told to whoever keeps count of them";
  engine_->CheckInvariants();
}

TEST_F(SharingTest, WhatNobodyClaimsAnyMoreIsUsedAgain) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", kAll / 2)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, kAllBlocks)), kAllBlocks);
  const std::vector<Hold> holds = Holds(Lease(a, Chain(1, kAllBlocks)));
  StartReserve(b, Chain(5000, 32), GroupId(2));
  EXPECT_FALSE(engine_->MayRenew(holds));
  engine_->AbortGroup(GroupId(2));
  AdvanceMs(500);
  EXPECT_TRUE(engine_->MayRenew(holds));
  engine_->Release(holds);
  EXPECT_EQ(Matched(a, Chain(1, kAllBlocks)), kAllBlocks);
}

TEST_F(SharingTest, AScannerCannotTouchAGuarantee) {
  Start({Sharing("a/p", kAll / 2), Sharing("scan/p", 0)}, 0);
  const NamespaceId a = Open("a/p"), scan = Open("scan/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, kHalfBlocks)), kHalfBlocks);
  for (uint64_t round = 0; round < 40; ++round) {
    Store("scan/p", scan, Chain(10000 + 1000 * round, 200));
    ASSERT_EQ(Matched(a, Chain(1, kHalfBlocks)), kHalfBlocks) << "round " << round;
    AdvanceMs(300);
  }
  EXPECT_EQ(Charged("scan/p"), kAll / 2) << "what is idle is used";
  EXPECT_EQ(Evictions("a/p"), 0u);
}

TEST_F(SharingTest, ANewcomerGetsItsFairShareAndThenNobodyTakesFromAnybody) {
  Start({Sharing("a/p", 0), Sharing("b/p", 0)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  uint64_t key = 1;
  const auto store_both = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      Store("a/p", a, Chain(key += 1000, 100));
      Store("b/p", b, Chain(key += 1000, 100));
      AdvanceMs(500);
    }
  };
  ASSERT_EQ(Store("a/p", a, Chain(100000, kAllBlocks)), kAllBlocks);
  store_both(60);
  EXPECT_NEAR(static_cast<double>(Charged("a/p")), kAll / 2, 18.0 * kMiB);
  EXPECT_NEAR(static_cast<double>(Charged("b/p")), kAll / 2, 18.0 * kMiB);
  const uint64_t taken = TakenFrom("a/p") + TakenFrom("b/p");
  EXPECT_GT(taken, 300u);
  store_both(40);
  EXPECT_EQ(TakenFrom("a/p") + TakenFrom("b/p"), taken) << "no ping-pong";
  engine_->CheckInvariants();
}

TEST_F(SharingTest, WhoIsMissedGetsSpaceFromWhoIsNot) {
  // b comes back to more than it may hold; a holds the rest and never comes back. Weights are equal.
  Start({Sharing("a/p", 0), Sharing("b/p", 0)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("b/p", b, Chain(1, 192)), 192u);
  Store("a/p", a, Chain(100000, kAllBlocks));
  const uint64_t before = Charged("b/p");
  for (int round = 0; round < 120; ++round) {
    for (uint64_t chain = 0; chain < 8; ++chain) {
      const auto keys = Chain(1 + 5000 * chain, 48);
      const uint32_t matched = Matched(b, keys);
      if (matched < keys.size()) Store("b/p", b, keys);
    }
    AdvanceMs(1000);
  }
  EXPECT_GT(Charged("b/p"), before);
  for (uint64_t chain = 0; chain < 8; ++chain) EXPECT_EQ(Matched(b, Chain(1 + 5000 * chain, 48)), 48u);
  EXPECT_GE(Charged("a/p"), kAll / 2) << "no more than b can use";
}

TEST_F(SharingTest, PremiumIsWrittenDownBeforeItGoesAndBasicIsNot) {
  auto premium = Sharing("premium/p", 0), basic = Sharing("basic/p", 0);
  premium.sla = SlaTier::kPremium;
  basic.sla = SlaTier::kBasic;
  Start({premium, basic, Sharing("c/p", kAll)});
  const NamespaceId p = Open("premium/p"), q = Open("basic/p"), c = Open("c/p");
  ASSERT_EQ(Store("premium/p", p, Chain(1, 128)), 128u);
  ASSERT_EQ(Store("basic/p", q, Chain(1, 128)), 128u);
  // Only now may they use NVMe: no copy is there yet.
  for (int i : {0, 1}) rules_[i].tier(TierKind::kNvme).limit_bytes = kTestNvmeBytes / 2;
  engine_->ApplyPolicy(Table());
  ASSERT_EQ(Store("c/p", c, Chain(1, kAllBlocks)), kAllBlocks);
  EXPECT_EQ(Matched(q, Chain(1, 128)), 0u);
  std::vector<TierKind> tiers;
  EXPECT_EQ(Matched(p, Chain(1, 128), &tiers), 128u);
  EXPECT_TRUE(std::all_of(tiers.begin(), tiers.end(), [](TierKind tier) { return tier == TierKind::kNvme; }));
  EXPECT_EQ(StatsOf("premium/p").demotions, 128u);
  EXPECT_EQ(TakenFrom("premium/p"), 128u);
  EXPECT_EQ(TakenFrom("basic/p"), 128u);
  engine_->CheckInvariants();
}

TEST_F(SharingTest, BasicGivesFirstAndGetsOnlyWhatIsIdle) {
  auto basic = Sharing("basic/p", 0);
  basic.sla = SlaTier::kBasic;
  Start({Sharing("a/p", 0), basic}, 0);
  const NamespaceId a = Open("a/p"), b = Open("basic/p");
  ASSERT_EQ(Store("basic/p", b, Chain(1, kAllBlocks)), kAllBlocks);
  uint64_t key = 100000;
  for (int round = 0; round < 60; ++round) {
    Store("a/p", a, Chain(key += 1000, 200));
    Store("basic/p", b, Chain(key += 1000, 200));
    AdvanceMs(1000);
  }
  EXPECT_GE(Charged("a/p"), kAll - 32 * kMiB) << "a wants all of it";
  EXPECT_EQ(TakenFrom("a/p"), 0u);
}

TEST_F(SharingTest, AGuaranteeGivenWhileAllIsHeldIsKept) {
  Start({Sharing("a/p", 0), Sharing("b/p", 0)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  ASSERT_EQ(Store("a/p", a, Chain(1, kAllBlocks)), kAllBlocks);
  // Into the middle of an extent of a.
  rules_[0].tier(TierKind::kDram).guarantee_bytes = kAll - 10 * kMiB;
  rules_[1].tier(TierKind::kDram).guarantee_bytes = 10 * kMiB;
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Store("b/p", b, Chain(1, 40)), 40u);
  EXPECT_EQ(Charged("b/p"), 10 * kMiB);
  EXPECT_EQ(Store("a/p", a, Chain(9000, 24)), 24u) << "and a takes the rest of the extent back";
  EXPECT_EQ(Charged("a/p"), kAll - 10 * kMiB);
}

TEST_F(SharingTest, ATenantThatIsGoneGivesFirst) {
  Start({Sharing("a/p", kAll / 2), Sharing("b/p", 0), Sharing("c/p", 0)}, 0);
  const NamespaceId a = Open("a/p"), b = Open("b/p"), c = Open("c/p");
  ASSERT_EQ(Store("b/p", b, Chain(1, kHalfBlocks)), kHalfBlocks);
  ASSERT_EQ(Store("c/p", c, Chain(1, kHalfBlocks)), kHalfBlocks);
  rules_.erase(rules_.begin() + 1);
  engine_->ApplyPolicy(Table());
  ASSERT_EQ(Store("a/p", a, Chain(1, 128)), 128u);
  EXPECT_EQ(TakenFrom("c/p"), 0u);
  EXPECT_EQ(TakenFrom("b/p"), 128u);
}

TEST_F(SharingTest, OnNvmeTheSameRuleHolds) {
  nvme_capacity_bytes_ = 64 * (kTestBlockBytes + kNvmeHeaderBytes);
  auto a_rules = Rules("a/p", kAll / 2, nvme_capacity_bytes_), b_rules = Rules("b/p", kAll / 2, nvme_capacity_bytes_);
  b_rules.tier(TierKind::kNvme).guarantee_bytes = nvme_capacity_bytes_ / 2;
  Start({a_rules, b_rules});
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  Store("a/p", a, Chain(1, 64));
  Pump();
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 64u);
  Store("b/p", b, Chain(1, 64));
  Pump();
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 32u);
  EXPECT_EQ(TierStatsOf("b/p", TierKind::kNvme).blocks, 32u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).drop(DropReason::kTakenByOther).count, 32u);
  engine_->CheckInvariants();
}

TEST_F(SharingTest, ForAShareOfNvmeNobodyGivesUpBlocksWhoseSlotsAreOfNoUse) {
  nvme_capacity_bytes_ = kTestNvmeBytes;
  Start({Rules("a/p", kAll / 2, nvme_capacity_bytes_), Rules("b/p", kAll / 2, nvme_capacity_bytes_)}, kTestNvmeBytes);
  const NamespaceId a = Open("a/p"), b = Open("b/p", 1, 1, 3 * kTestBlockBytes);
  for (uint64_t i = 0; i < 1200; ++i) Store("a/p", a, Chain(1 + i, 1));
  Pump();
  for (uint64_t i = 0; i < 60; ++i) {
    Store("b/p", b, Chain(1 + i, 1));
    AdvanceMs(500);
  }
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).drop(DropReason::kTakenByOther).count, 0u);
  engine_->CheckInvariants();
}

// As every real disk is: what slots cover is less than what the books count.
TEST_F(SharingTest, OnNvmeSharesHoldAlsoWhereTheBooksHaveRoomThatNoSlotCovers) {
  nvme_capacity_bytes_ = kTestNvmeBytes;
  Start({Rules("a/p", kAll / 2, nvme_capacity_bytes_), Rules("b/p", kAll / 2, nvme_capacity_bytes_)}, kTestNvmeBytes);
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  for (uint64_t i = 0; i < 1200; ++i) Store("a/p", a, Chain(1 + i, 1));
  Pump();
  const uint64_t all = TierStatsOf("a/p", TierKind::kNvme).blocks;
  ASSERT_GT(all, 900u);
  for (uint64_t i = 0; i < 1200; ++i) {
    Store("b/p", b, Chain(1 + i, 1));
    if (i % 50 == 0) AdvanceMs(1000);
  }
  EXPECT_GT(TierStatsOf("b/p", TierKind::kNvme).blocks, all * 2 / 5);
  EXPECT_GT(TierStatsOf("a/p", TierKind::kNvme).blocks, all * 2 / 5);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
