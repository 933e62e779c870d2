// maxAge: over everything, everywhere, provably: zeros in DRAM and on disk, a receipt, and nothing comes back.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;
using policy::Refusal;

class DeletionTest : public EngineTest {
 protected:
  static policy::TenantRules Aging(uint64_t max_age_ms) {
    auto rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
    rules.max_age_ms = max_age_ms;
    rules.tier(TierKind::kDram).guarantee_bytes = 16 * kMiB;
    return rules;
  }
};

TEST_F(DeletionTest, WhatIsOverAgeIsZeroedEverywhereAndAReceiptSaysSo) {
  Start({Aging(3000), Rules("b/p", 16 * kMiB, 16 * kMiB)});
  const NamespaceId ns = Open("a/p");
  Store("b/p", Open("b/p"), Chain(1, 1));  // the same key and bytes, of somebody else
  const int64_t before_ms = clock_.WallMs();
  Store("a/p", ns, Chain(1, 6));
  Pump();
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 6), 0, 0, &places);
  engine_->Release(Holds(places));
  ASSERT_EQ(PagesOnDisk(KeyOf(2)), kTestBlockBytes / 4096);
  AdvanceMs(2900);
  EXPECT_EQ(Matched(ns, Chain(1, 6)), 6u);
  AdvanceMs(300);
  EXPECT_EQ(Matched(ns, Chain(1, 6)), 0u);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(PagesOnDisk(KeyOf(1 + i)), i == 0 ? kTestBlockBytes / 4096 : 0u) << "block " << i;
    const std::byte* data = Data("a/p", places[i].arena_offset);
    EXPECT_TRUE(std::all_of(data, data + kTestBlockBytes, [](std::byte byte) { return byte == std::byte{0}; }));
  }
  ASSERT_FALSE(receipts_.empty());
  DeletionReceipt sum;
  for (const DeletionReceipt& receipt : receipts_) {
    EXPECT_EQ(receipt.tenant, "a/p");
    EXPECT_EQ(receipt.reason, DropReason::kMaxAge);
    EXPECT_GE(receipt.oldest_first_commit_ms, before_ms - kTickMs);
    EXPECT_GE(receipt.wall_ms, receipt.oldest_first_commit_ms + 3000);
    sum.blocks += receipt.blocks;
    for (size_t i = 0; i < kTierCount; ++i) sum.tier_bytes[i] += receipt.tier_bytes[i];
    sum.unerased_blocks += receipt.unerased_blocks;
  }
  EXPECT_EQ(sum.blocks, 6u);
  for (const TierKind tier : {TierKind::kDram, TierKind::kNvme}) {
    EXPECT_EQ(sum.tier_bytes[TierIndex(tier)], 6 * uint64_t{kTestBlockBytes});
  }
  EXPECT_EQ(sum.unerased_blocks, 0u);
  EXPECT_LE(receipts_.size(), 3u) << "one a tick, not one a block";
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).drop(DropReason::kMaxAge).count, 6u);
  engine_->CheckInvariants();
}

TEST_F(DeletionTest, ABlockThatIsBeingZeroedIsServedToNobodyThoughANewPolicyWouldKeepIt) {
  Start({Aging(1000)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 6));
  Pump();
  memory_->Hold();
  AdvanceMs(1200);
  rules_[0].max_age_ms = 0;
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Matched(ns, Chain(1, 6)), 0u);
  EXPECT_EQ(Reserve(kGroup, ns, Chain(1, 1))[0].reason, Refusal::kBusy) << "nor stored anew meanwhile";
  memory_->Release();
  AdvanceMs(200);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(Store("a/p", ns, Chain(1, 6)), 6u);
  engine_->CheckInvariants();
}

TEST_F(DeletionTest, MaxAgeBeatsAPinAndALimit) {
  Start({Aging(60'000)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 4));
  Pump();
  ASSERT_EQ(Pin(ns, Chain(1, 2), 50'000), Refusal::kNone);
  AdvanceMs(2000);
  rules_[0].max_age_ms = 1000;
  rules_[0].tier(TierKind::kDram) = rules_[0].tier(TierKind::kNvme) = {};
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Matched(ns, Chain(1, 4)), 0u);
  AdvanceMs(3000);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  engine_->CheckInvariants();
}

TEST_F(DeletionTest, WhatBecameOverAgeWhileTheDaemonWasDownIsZeroedAtTheStart) {
  Start({Aging(60'000)});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  clock_.AdvanceMs(61'000);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 0u);
  AdvanceMs(300);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 0u);
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_[0].blocks, 4u);
  catalog_disk_->complete = false;  // even a scan of the headers finds nothing
  catalog_disk_->records.clear();
  Restart();
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
}

TEST_F(DeletionTest, AReaderInPlaceIsNotTornAwayAndTheBlockGoesWithIt) {
  Start({Aging(2000)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 1));
  Pump();
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 1), 0, 0, &places);
  AdvanceMs(3000);
  EXPECT_EQ(*Data("a/p", places[0].arena_offset), std::byte{KeyOf(1).bytes[0]});
  EXPECT_EQ(Matched(ns, Chain(1, 1)), 0u) << "nobody else gets it";
  const auto again = Reserve(kGroup, ns, Chain(1, 1));
  EXPECT_EQ(again[0].reason, Refusal::kBusy);
  engine_->Release(Holds(places));
  AdvanceMs(1500);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  EXPECT_EQ(Store("a/p", ns, Chain(1, 1)), 1u) << "and is stored anew";
}

TEST_F(DeletionTest, ADiskThatTakesNoZerosIsNamedInTheReceipt) {
  Start({Aging(2000)});
  Store("a/p", Open("a/p"), Chain(1, 1));
  Pump();
  file_->FaultNext(testing::DiskFault::kIoError);
  AdvanceMs(2500);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].unerased_blocks, 1u);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  Restart();
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  engine_->CheckInvariants();
}

TEST_F(DeletionTest, AWaveOfDeletionsLeavesTheQueuesToOthers) {
  Start({Aging(2000)});
  const NamespaceId ns = Open("a/p");
  for (uint64_t first = 0; first < 240; first += 60) Store("a/p", ns, Chain(1 + first, 60));
  Pump();
  file_->Hold();
  AdvanceMs(2500);
  EXPECT_LE(file_->Pending(), size_t{kErasuresMax});
  EXPECT_GT(file_->Pending(), 0u);
  file_->Release();
  AdvanceMs(3000);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  engine_->CheckInvariants();
}

// A tombstone is dated after all that was there when the drop began, and before all that comes later.
TEST_F(DeletionTest, WhatIsStoredInTheTickOfADropIsAsDurableAsAnything) {
  Start({Rules("a/p", 16 * kMiB, 32 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  for (int drop = 0; drop < 3; ++drop) {
    engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
    Pump();
  }
  ASSERT_EQ(Store("a/p", Open("a/p"), Chain(20, 4)), 4u);
  Pump();
  ASSERT_EQ(durable_.size(), 8u);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(20, 4)), 4u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 0u);
  AdvanceMs(3000);
  EXPECT_EQ(LookupAndLoad("a/p", Open("a/p"), Chain(20, 4)).wrong, 0u);
}

}  // namespace
}  // namespace kvartal::engine
