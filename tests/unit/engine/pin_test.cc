// Pins: within the guarantee or refused, kept against eviction and TTL and across a restart; what may end one early.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::Refusal;

class PinTest : public EngineTest {
 protected:
  // 8 blocks of guarantee.
  static policy::TenantRules Guaranteed(uint64_t dram_limit = 16 * kMiB, uint64_t nvme_limit = 16 * kMiB) {
    auto rules = Rules("a/p", dram_limit, nvme_limit);
    rules.tier(TierKind::kDram).guarantee_bytes = 8 * uint64_t{kTestBlockBytes};
    return rules;
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
  auto rules = Guaranteed(16 * kMiB, 4 * kMiB);
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

TEST_F(PinTest, APinnedBlockBecomesDurable) {
  auto rules = Guaranteed(16 * kMiB, 0);
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 2));
  rules_[0].tier(TierKind::kNvme).limit_bytes = 16 * kMiB;  // what is there was not written through
  engine_->ApplyPolicy(Table());
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 2), 300'000), Refusal::kNone);
  AdvanceMs(2000);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 2u);
  Restart();
  rules_[0].tier(TierKind::kNvme).limit_bytes = 16 * kMiB;
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
  Start({Guaranteed()});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 8));
  Pump();
  ASSERT_EQ(Pin(ns, Chain(1, 8), 60'000), Refusal::kNone);
  AdvanceMs(300);
  rules_[0].tier(TierKind::kDram).guarantee_bytes = 0;
  rules_[0].tier(TierKind::kNvme).guarantee_bytes = 8 * uint64_t{kTestBlockBytes};
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
  rules_[0].tier(TierKind::kDram).guarantee_bytes = 3 * uint64_t{kTestBlockBytes};
  engine_->ApplyPolicy(Table());
  AdvanceMs(3000);
  EXPECT_EQ(StatsOf("a/p").tiers[TierIndex(TierKind::kDram)].blocks, 3u);
  engine_->CheckInvariants();
}

TEST_F(PinTest, APinNoLongerCoveredAtARestartIsNotKept) {
  Start({Guaranteed()});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 4), 600'000), Refusal::kNone);
  AdvanceMs(300);
  rules_[0].tier(TierKind::kDram).guarantee_bytes = 0;
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 4u) << "the blocks are";
  EXPECT_EQ(Pin(Open("a/p"), Chain(1, 1), 1000), Refusal::kTenantLimit);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
