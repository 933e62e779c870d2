// Pins: within the guarantee or refused, kept against eviction and TTL and across a restart; what may end one early.
#include <algorithm>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::Refusal;

constexpr uint64_t kSlot = kTestBlockBytes + kNvmeHeaderBytes;

class PinTest : public EngineTest {
 protected:
  // So many blocks of guarantee.
  static policy::TenantRules Guaranteed(uint64_t on_nvme = 8, uint64_t in_dram = 0, uint64_t nvme_limit = 16 * kMiB) {
    auto rules = Rules("a/p", 16 * kMiB, nvme_limit);
    rules.tier(TierKind::kDram).guarantee_bytes = in_dram * kTestBlockBytes;
    rules.tier(TierKind::kNvme).guarantee_bytes = on_nvme * kSlot;
    return rules;
  }
  NamespaceId StartWith(const policy::TenantRules& rules, size_t blocks) {
    Start({rules});
    const NamespaceId ns = Open("a/p");
    EXPECT_EQ(Store("a/p", ns, Chain(1, blocks)), blocks);
    Pump();
    return ns;
  }
  // Two blocks; their copies on NVMe are there by now, and no timer has looked yet.
  NamespaceId PinInMemoryBeforeTheDiskHasIt() {
    Start({Guaranteed(4, 4)});
    const NamespaceId ns = Open("a/p");
    file_->Hold();
    EXPECT_EQ(Store("a/p", ns, Chain(1, 2)), 2u);
    file_->SetOverdue(1);
    EXPECT_EQ(Pin(ns, Chain(1, 2), 600'000), Refusal::kNone);
    file_->SetOverdue(0);
    file_->Release();
    Pump();
    return ns;
  }
  uint64_t Refusals(Refusal reason) const { return TierStatsOf("a/p", TierKind::kDram).refusal(reason).count; }
};

TEST_F(PinTest, APinAboveTheGuaranteeIsRefusedWholeAndCounted) {
  Start({Guaranteed()});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 16));
  Pump();
  EXPECT_EQ(Pin(ns, Chain(1, 9), 60'000), Refusal::kTenantLimit);
  EXPECT_EQ(Pin(ns, Chain(1, 8), 60'000), Refusal::kNone) << "nothing of the refused one is pinned";
  EXPECT_EQ(Pin(ns, Chain(1, 8), 90'000), Refusal::kNone) << "the same blocks for longer cost nothing more";
  EXPECT_EQ(Pin(ns, Chain(1, 9), 60'000), Refusal::kTenantLimit);
  EXPECT_EQ(Refusals(Refusal::kTenantLimit), 2u);
  engine_->CheckInvariants();
}

TEST_F(PinTest, OnNvmeTheHeaderCounts) {
  auto rules = Guaranteed();
  rules.tier(TierKind::kNvme).guarantee_bytes = 8 * uint64_t{kTestBlockBytes};
  const NamespaceId ns = StartWith(rules, 8);
  EXPECT_EQ(Pin(ns, Chain(1, 8), 60'000), Refusal::kTenantLimit);
  EXPECT_EQ(Pin(ns, Chain(1, 7), 60'000), Refusal::kNone);
  EXPECT_EQ(StatsOf("a/p").pinned_bytes, 7 * kSlot);
}

TEST_F(PinTest, EachTiersGuaranteeCoversItsOwnPins) {
  auto rules = Guaranteed(3, 3);
  for (const TierKind tier : {TierKind::kDram, TierKind::kNvme})
    rules.tier(tier).guarantee_bytes += kTestBlockBytes / 2;
  const NamespaceId ns = StartWith(rules, 8);
  EXPECT_EQ(Pin(ns, Chain(1, 7), 60'000), Refusal::kTenantLimit) << "halves of two tiers are no place for a block";
  EXPECT_EQ(Pin(ns, Chain(1, 6), 60'000), Refusal::kNone);
  EXPECT_EQ(StatsOf("a/p").pinned_bytes, 3 * kSlot + 3 * uint64_t{kTestBlockBytes});
  engine_->CheckInvariants();
}

TEST_F(PinTest, ASearchForRoomAsksNoBlockForATimeThatItDoesNotHaveYet) {
  auto rules = Guaranteed(1, 1, kSlot);
  rules.ttl_ms[TierIndex(TierKind::kNvme)] = 600'000;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 1)), 1u);
  Pump();
  // Its write-through takes the place of the first one.
  Store("a/p", ns, Chain(1, 2));
  Pump();
  EXPECT_EQ(Pin(ns, Chain(1, 2), 60'000), Refusal::kNone);
  Pump();
  EXPECT_EQ(StatsOf("a/p").pinned_bytes, kSlot + kTestBlockBytes);
  engine_->CheckInvariants();
}

TEST_F(PinTest, ABlockThatALeaseHasTwiceCountsOnce) {
  const NamespaceId ns = StartWith(Guaranteed(1), 1);
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 1), 0, 0, &places);
  const std::vector<Hold> twice = {HoldOf(places[0]), HoldOf(places[0])};
  EXPECT_EQ(engine_->Pin(twice, clock_.WallMs() + 60'000), Refusal::kNone);
  EXPECT_EQ(StatsOf("a/p").pinned_bytes, kSlot);
  engine_->Release(Holds(places));
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinIsOfAPrefix) {
  const NamespaceId ns = StartWith(Guaranteed(), 8);
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 8), 0, 0, &places);
  const std::vector<Hold> holds = Holds(places);
  const auto pin = [&](size_t from, size_t count, int64_t for_ms) {
    return engine_->Pin(std::span(holds).subspan(from, count), clock_.WallMs() + for_ms);
  };
  EXPECT_EQ(pin(4, 4, 60'000), Refusal::kParentUnpinned);
  EXPECT_EQ(pin(0, 4, 60'000), Refusal::kNone);
  EXPECT_EQ(pin(4, 4, 70'000), Refusal::kParentUnpinned) << "for longer than what is before it";
  EXPECT_EQ(pin(4, 4, 60'000), Refusal::kNone);
  engine_->Release(holds);
}

TEST_F(PinTest, APinOnNvmeCostsNoMemoryThatIsBorrowed) {
  const NamespaceId ns = StartWith(Guaranteed(), 8);
  ASSERT_EQ(Pin(ns, Chain(1, 8), 60'000), Refusal::kNone);
  for (uint64_t first = 1000; first < 1100; first += 10) Store("a/p", ns, Chain(first, 10));
  std::vector<TierKind> tiers;
  EXPECT_EQ(Matched(ns, Chain(1, 8), &tiers), 8u);
  EXPECT_TRUE(std::all_of(tiers.begin(), tiers.end(), [](TierKind tier) { return tier == TierKind::kNvme; }));
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinInDramKeepsTheMemoryAndEndsWithTheDaemon) {
  const NamespaceId ns = StartWith(Guaranteed(0, 8), 8);
  ASSERT_EQ(Pin(ns, Chain(1, 8), 600'000), Refusal::kNone);
  for (uint64_t first = 1000; first < 1100; first += 10) Store("a/p", ns, Chain(first, 10));
  std::vector<TierKind> tiers;
  EXPECT_EQ(Matched(ns, Chain(1, 8), &tiers), 8u);
  EXPECT_TRUE(std::all_of(tiers.begin(), tiers.end(), [](TierKind tier) { return tier == TierKind::kDram; }));
  AdvanceMs(300);
  Restart();
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 0u);
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinThatWasSetWhileTheDiskHungOutlivesTheDaemonOnceItsBlockIsThere) {
  PinInMemoryBeforeTheDiskHasIt();
  AdvanceMs(1000);
  Restart();
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 2u);
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinThatIsRenewedBeforeItHasMovedToNvmeMovesAllTheSame) {
  const NamespaceId ns = PinInMemoryBeforeTheDiskHasIt();
  ASSERT_EQ(Pin(ns, Chain(1, 2), 900'000), Refusal::kNone);
  AdvanceMs(1000);
  Restart();
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 2u);
}

TEST_F(PinTest, APinIsNotMovedToACopyThatCannotBeRead) {
  auto rules = Guaranteed(1, 4);
  rules.ttl_ms[TierIndex(TierKind::kNvme)] = 80'000;  // looked at every ten seconds
  Start({rules});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 1)) + Store("a/p", ns, Chain(50, 1)), 2u);
  Pump();
  ASSERT_EQ(Pin(ns, Chain(1, 1), 2'000), Refusal::kNone);
  ASSERT_EQ(Pin(ns, Chain(50, 1), 600'000), Refusal::kNone) << "in memory, since the other has the guarantee of NVMe";
  file_->SetOverdue(1);
  AdvanceMs(15'000);
  for (uint64_t i = 0; i < 100; ++i) Store("a/p", ns, Chain(1000 + i, 1));
  EXPECT_EQ(Matched(ns, Chain(50, 1)), 1u);
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinThatCannotBeKeptIsRefused) {
  auto rules = Guaranteed();
  rules.max_age_ms = 10'000;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 2));
  Pump();
  AdvanceMs(1000);
  EXPECT_EQ(Pin(ns, Chain(1, 2), 9'500), Refusal::kTooLong) << "maxAge takes them before";
  EXPECT_EQ(Pin(ns, Chain(1, 2), kPinMsMax + 1), Refusal::kTooLong);
  EXPECT_EQ(Pin(ns, Chain(1, 2), 9'000), Refusal::kNone);
  EXPECT_EQ(Pin(ns, Chain(1, 2), -5), Refusal::kNone) << "until a time that is over: nothing to keep";
  // A block that went while somebody held it.
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 2), 0, 0, &places);
  clock_.AdvanceMs(9'500);
  EXPECT_EQ(engine_->Pin(Holds(places), clock_.WallMs() + 100), Refusal::kGone);
  engine_->Release(Holds(places));
}

TEST_F(PinTest, APinEndsAtItsTimeThoughTheTimersAreLate) {
  auto rules = Guaranteed();
  rules.ttl_ms[TierIndex(TierKind::kDram)] = rules.ttl_ms[TierIndex(TierKind::kNvme)] = 1000;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 2));
  Store("a/p", ns, Chain(100, 2));
  Pump();
  ASSERT_EQ(Pin(ns, Chain(1, 2), 5000), Refusal::kNone);
  AdvanceMs(4900);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 2u) << "pin over TTL";
  clock_.AdvanceMs(100);  // no tick
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 0u) << "idle for five seconds, and no longer pinned";
  AdvanceMs(200);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinSurvivesARestartAndEnds) {
  auto rules = Guaranteed(8, 0, 4 * kMiB);
  rules.ttl_ms[TierIndex(TierKind::kDram)] = rules.ttl_ms[TierIndex(TierKind::kNvme)] = 60'000;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 4));
  Pump();
  ASSERT_EQ(Pin(ns, Chain(1, 4), 300'000), Refusal::kNone);
  AdvanceMs(300);
  Restart();
  clock_.AdvanceMs(100'000);
  AdvanceMs(200);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 4u) << "kept against the TTL";
  for (uint64_t first = 1000; first < 1200; first += 10) {
    Store("a/p", Open("a/p"), Chain(first, 10));
    Pump();
  }
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 4u) << "and against eviction";
  EXPECT_EQ(Pin(Open("a/p"), Chain(1190, 5), 60'000), Refusal::kTenantLimit) << "the recovered ones count";
  engine_->CheckInvariants();
  AdvanceMs(270'000);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
}

TEST_F(PinTest, APinSurvivesARestartThoughTheCatalogTookNoWritesWhenItWasGranted) {
  Start({Guaranteed()});
  Store("a/p", Open("a/p"), Chain(1, 2));
  Pump();
  AdvanceMs(300);
  catalog_->FailWrites(absl::ResourceExhaustedError("disk full"));
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 2), 300'000), Refusal::kNone);
  constexpr int64_t kRetryMs = kCatalogReopenSeconds * 1000;
  AdvanceMs(2 * kRetryMs + 1000);
  EXPECT_EQ(catalog_->counts().refreshes, 2u * 3) << "tried, and tried again when its store may be open";
  catalog_->FailWrites(absl::OkStatus());
  AdvanceMs(kRetryMs);
  const uint64_t refreshes = catalog_->counts().refreshes;
  AdvanceMs(3000);
  EXPECT_EQ(catalog_->counts().refreshes, refreshes) << "and no longer";
  Restart();
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 2u);
  engine_->CheckInvariants();
}

// An entry, and a slot, may be another block's by the time the catalog answers.
TEST_F(PinTest, TimesOfABlockThatWentMeanwhileAreNotWrittenAgain) {
  auto rules = Guaranteed();
  rules.max_age_ms = 2000;
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 1));
  Pump();
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 1), 500), Refusal::kNone);
  catalog_->FailWrites(absl::ResourceExhaustedError("disk full"));
  catalog_->Hold();
  AdvanceMs(5000);
  ASSERT_EQ(StatsOf("a/p").entries, 0u);
  const uint64_t refreshes = catalog_->counts().refreshes;
  catalog_->Release();
  Pump();
  EXPECT_EQ(catalog_->counts().refreshes, refreshes + 1);
  catalog_->FailWrites(absl::OkStatus());
  AdvanceMs(3000);
  EXPECT_EQ(catalog_->counts().refreshes, refreshes + 1);
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinnedBlockBecomesDurable) {
  Start({Guaranteed(0, 0, 0)});
  Store("a/p", Open("a/p"), Chain(1, 2));
  rules_[0] = Guaranteed();  // what is there was not written through
  engine_->ApplyPolicy(Table());
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 2), 300'000), Refusal::kNone);
  AdvanceMs(2000);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 2u);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 2)), 2u);
  EXPECT_EQ(Pin(Open("a/p"), Chain(1, 2), 10), Refusal::kNone);
}

TEST_F(PinTest, AWriteThatFailsIsTriedAgainUntilThePinnedBlockIsDurable) {
  Start({Guaranteed()});
  file_->FaultNext(testing::DiskFault::kIoError, 2);  // the header of the segment, and all that waits for it
  Store("a/p", Open("a/p"), Chain(1, 1));
  Pump();
  ASSERT_EQ(StatsOf("a/p").durable_blocks, 0u);
  file_->FaultNext(testing::DiskFault::kIoError, 1);
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 1), 60'000), Refusal::kNone);
  AdvanceMs(3000);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 1u);
  EXPECT_NE(catalog_disk_->records.begin()->second.pinned_until_s, 0u);
}

TEST_F(PinTest, ALimitBeatsAPinWhichFollowsTheBlockToItsOtherCopy) {
  Start({Guaranteed(0, 8)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 8));
  Pump();
  ASSERT_EQ(Pin(ns, Chain(1, 8), 60'000), Refusal::kNone);
  AdvanceMs(300);
  rules_[0].tier(TierKind::kDram).guarantee_bytes = 0;
  rules_[0].tier(TierKind::kNvme).guarantee_bytes = 8 * kSlot;
  rules_[0].tier(TierKind::kDram).limit_bytes = 0;
  engine_->ApplyPolicy(Table());
  AdvanceMs(1500);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 0u) << "limit over pin";
  std::vector<TierKind> tiers;
  EXPECT_EQ(Matched(ns, Chain(1, 8), &tiers), 8u);
  EXPECT_EQ(tiers[0], TierKind::kNvme);
  rules_[0].ttl_ms[TierIndex(TierKind::kNvme)] = 1000;
  engine_->ApplyPolicy(Table());
  AdvanceMs(5000);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 8u) << "still pinned";
  engine_->CheckInvariants();
}

TEST_F(PinTest, AGuaranteeThatIsLoweredEndsThePinsBeyondIt) {
  auto rules = Guaranteed();
  rules.ttl_ms[TierIndex(TierKind::kDram)] = rules.ttl_ms[TierIndex(TierKind::kNvme)] = 1000;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 8));
  Pump();
  ASSERT_EQ(Pin(ns, Chain(1, 8), 60'000), Refusal::kNone);
  rules_[0].tier(TierKind::kNvme).guarantee_bytes = 3 * kSlot;
  engine_->ApplyPolicy(Table());
  AdvanceMs(3000);
  EXPECT_EQ(StatsOf("a/p").tiers[TierIndex(TierKind::kNvme)].blocks, 3u);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 3u) << "the front of the chain";
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinNoLongerCoveredAtARestartIsNotKept) {
  Start({Guaranteed()});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 4), 600'000), Refusal::kNone);
  AdvanceMs(300);
  rules_[0].tier(TierKind::kNvme).guarantee_bytes = 0;
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 4u) << "the blocks are";
  EXPECT_EQ(Pin(Open("a/p"), Chain(1, 1), 1000), Refusal::kTenantLimit);
  engine_->CheckInvariants();
}

// Its record was never written, and no longer matters.
TEST_F(PinTest, WhatExpiredWhileItsPinWasBeingWrittenIsNotWrittenAgainAtEveryTick) {
  auto rules = Guaranteed();
  rules.ttl_ms[TierIndex(TierKind::kDram)] = 0;
  rules.ttl_ms[TierIndex(TierKind::kNvme)] = 500;
  Start({rules});
  file_->Hold();
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 2)), 2u);
  ASSERT_EQ(Pin(ns, Chain(1, 2), 200), Refusal::kNone);
  AdvanceMs(2'000);
  file_->Release();
  AdvanceMs(200);
  const uint64_t written = StatsOf("a/p").write_throughs;
  AdvanceMs(1'000);
  EXPECT_EQ(StatsOf("a/p").write_throughs, written);
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 2u) << "in memory it has no TTL";
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
