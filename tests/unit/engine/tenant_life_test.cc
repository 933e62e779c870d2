// A tenant whose policy goes: kept for a grace, erased after it, and nobody inherits anything; tombstones.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;

class TenantLifeTest : public EngineTest {
 protected:
  void StartTwo() {
    options_.removed_grace_ms = 5000;
    Start({Rules("a/p", 16 * kMiB, 32 * kMiB), Rules("b/p", 16 * kMiB, 32 * kMiB)});
    Store("a/p", Open("a/p"), Chain(1, 6));
    Store("b/p", Open("b/p"), Chain(50, 3));
    Pump();
  }
  policy::TenantRules Remove() {
    const policy::TenantRules gone = rules_[0];
    rules_.erase(rules_.begin());
    engine_->ApplyPolicy(Table());
    return gone;
  }
  void Return(const policy::TenantRules& rules) {
    rules_.insert(rules_.begin(), rules);
    engine_->ApplyPolicy(Table());
  }
  uint64_t NvmeBytes() const { return engine_->stats().charged_bytes[TierIndex(TierKind::kNvme)]; }
  static constexpr uint64_t kSlot = kTestBlockBytes + kNvmeHeaderBytes;
};

TEST_F(TenantLifeTest, ARemovedTenantIsErasedAfterItsGraceWithAReceiptAndATombstone) {
  StartTwo();
  Remove();
  EXPECT_FALSE(engine_->FindTenant("a/p").valid());
  AdvanceMs(4800);
  EXPECT_EQ(NvmeBytes(), 9 * kSlot) << "kept for the grace";
  EXPECT_TRUE(receipts_.empty());
  AdvanceMs(600);
  EXPECT_EQ(NvmeBytes(), 3 * kSlot);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  EXPECT_EQ(PagesOnDisk(KeyOf(50)), kTestBlockBytes / 4096) << "others' bytes stay";
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].tenant, "a/p");
  EXPECT_EQ(receipts_[0].reason, DropReason::kRemoved);
  EXPECT_EQ(receipts_[0].blocks, 6u);
  EXPECT_EQ(receipts_[0].bytes(), 2 * 6 * uint64_t{kTestBlockBytes});
  EXPECT_EQ(catalog_disk_->tombstones.size(), 1u);
  AdvanceMs(20'000);
  EXPECT_EQ(receipts_.size(), 1u) << "once";
  engine_->CheckInvariants();
}

TEST_F(TenantLifeTest, ANodeWithoutTenantsKeepsItsTime) {
  Start({});
  AdvanceMs(3000);
  rules_ = {Rules("a/p", 16 * kMiB, 32 * kMiB)};
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Store("a/p", Open("a/p"), Chain(1, 6)), 6u);
}

TEST_F(TenantLifeTest, TheReceiptOfARemovedTenantDoesNotNameTheOneThatHasItsNameNow) {
  StartTwo();
  policy::TenantRules second = Remove();
  memory_->Hold();
  AdvanceMs(5200);
  ASSERT_TRUE(receipts_.empty()) << "its memory is not punched yet";
  second.uid = "another";
  Return(second);
  memory_->Release();
  AdvanceMs(200);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_NE(receipts_[0].tenant, "a/p");
  EXPECT_TRUE(receipts_[0].tenant.starts_with("a/p~")) << receipts_[0].tenant;
}

TEST_F(TenantLifeTest, ADropDuringRecoveryErasesWhatRecoveryBringsAfterwards) {
  StartTwo();
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();  // lost: blocks come back from their headers
  recovers_at_once_ = false;
  Restart();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](const absl::StatusOr<uint64_t>& bytes) { dropped = bytes; });
  Pump();
  AdvanceMs(500);
  ASSERT_TRUE(recovered_.has_value() && dropped.has_value() && dropped->ok());
  EXPECT_EQ(**dropped, 6 * uint64_t{kTestBlockBytes});
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  EXPECT_EQ(Matched(Open("b/p"), Chain(50, 3)), 3u);
}

TEST_F(TenantLifeTest, ADropDuringRecoveryEndsThoughRecoveryBringsPinnedBlocksAfterwards) {
  auto rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.tier(TierKind::kDram).guarantee_bytes = 16 * kMiB;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 6));
  ASSERT_EQ(Pin(ns, Chain(1, 6), 600'000), policy::Refusal::kNone);
  AdvanceMs(500);
  recovers_at_once_ = false;
  Restart();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](const absl::StatusOr<uint64_t>& bytes) { dropped = bytes; });
  Pump();
  AdvanceMs(500);
  ASSERT_TRUE(recovered_.has_value() && dropped.has_value() && dropped->ok());
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
}

TEST_F(TenantLifeTest, WhatIsStoredAfterADropIsNotTakenForOlderWhenTheClockWasSetBackMeanwhile) {
  Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 6));
  AdvanceMs(30'000);
  engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  AdvanceMs(500);
  clock_.SetWallBy(-3'600'000);
  Restart();
  AdvanceMs(500);
  Store("a/p", Open("a/p"), Chain(100, 4));
  AdvanceMs(500);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(100, 4)), 4u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
}

TEST_F(TenantLifeTest, AUidThatComesBackInTimeHasWhatItHad) {
  StartTwo();
  policy::TenantRules gone = Remove();
  AdvanceMs(4000);
  gone.name = "a/renamed";
  Return(gone);
  AdvanceMs(10'000);
  EXPECT_EQ(Matched(Open("a/renamed"), Chain(1, 6)), 6u);
  EXPECT_EQ(Store("a/renamed", Open("a/renamed"), Chain(100, 2)), 2u) << "and may grow again";
  EXPECT_TRUE(receipts_.empty());
  engine_->CheckInvariants();
}

TEST_F(TenantLifeTest, AnotherUidUnderTheNameInheritsNothingAndTheFirstMayStillComeBack) {
  StartTwo();
  const policy::TenantRules first = Remove();
  policy::TenantRules second = first;
  second.uid = "made anew";
  Return(second);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  Store("a/p", Open("a/p"), Chain(200, 1));
  AdvanceMs(1000);
  Remove();
  Return(first);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 6u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(200, 1)), 0u);
  AdvanceMs(6000);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 6u);
  EXPECT_EQ(PagesOnDisk(KeyOf(200)), 0u);
  engine_->CheckInvariants();
}

TEST_F(TenantLifeTest, ItMayNotGrowWhileItIsRemoved) {
  StartTwo();
  const NamespaceId ns = Open("a/p");
  Remove();
  const auto blocks = Reserve(kGroup, ns, Chain(300, 1));
  EXPECT_EQ(blocks[0].outcome, ReserveOutcome::kRefused);
}

TEST_F(TenantLifeTest, ARestartWithinTheGraceNeitherLosesNorForgetsIt) {
  StartTwo();
  const policy::TenantRules gone = Remove();
  AdvanceMs(1000);
  Restart();
  EXPECT_EQ(NvmeBytes(), 9 * kSlot);
  AdvanceMs(1000);
  Return(gone);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 6u);
  Remove();
  Restart();
  AdvanceMs(5500);
  EXPECT_EQ(NvmeBytes(), 3 * kSlot);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 6u);
  Return(gone);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  engine_->CheckInvariants();
}

TEST_F(TenantLifeTest, ATombstoneHoldsAgainstARecordThatCameLate) {
  StartTwo();
  const auto late = *catalog_disk_->records.begin();
  std::vector<std::byte> kept(file_->bytes().begin(), file_->bytes().end());
  Remove();
  AdvanceMs(6000);
  ASSERT_EQ(NvmeBytes(), 3 * kSlot);
  // As if the record had been written after the tombstone, and the zeros had never reached the disk.
  catalog_disk_->records.insert(late);
  std::copy(kept.begin(), kept.end(), file_->bytes().begin());
  rules_.insert(rules_.begin(), Rules("a/p", 16 * kMiB, 32 * kMiB));
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(Store("a/p", Open("a/p"), Chain(1, 2)), 2u) << "what is committed after it lives";
  Pump();
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 2)), 2u);
}

TEST_F(TenantLifeTest, AnErasureThatFailedIsTriedAgainAfterAnotherGrace) {
  StartTwo();
  Remove();
  catalog_->FailWrites(absl::ResourceExhaustedError("disk full"));
  AdvanceMs(5500);
  EXPECT_TRUE(catalog_disk_->tombstones.empty());
  catalog_->FailWrites(absl::OkStatus());
  AdvanceMs(5500);
  EXPECT_EQ(catalog_disk_->tombstones.size(), 1u);
}

TEST_F(TenantLifeTest, WhatCouldNotBeZeroedIsNeverCertifiedAsErased) {
  StartTwo();
  const auto drop = [this] {
    std::optional<absl::Status> ended;
    engine_->DropTenant(engine_->FindTenant("a/p"),
                        [&](const absl::StatusOr<uint64_t>& bytes) { ended = bytes.status(); });
    Pump();
    AdvanceMs(500);
    return ended.value_or(absl::DeadlineExceededError("the drop did not end"));
  };
  file_->FaultNext(testing::DiskFault::kIoError);
  EXPECT_FALSE(drop().ok());
  EXPECT_FALSE(drop().ok()) << "nothing is left to zero, and yet it is not gone";
  ASSERT_EQ(receipts_.size(), 2u);
  EXPECT_EQ(receipts_[0].unerased_blocks, 1u);
  EXPECT_EQ(receipts_[1].unerased_blocks, 1u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  engine_->CheckInvariants();
}

TEST_F(TenantLifeTest, ADropOnRequestLeavesAReceiptToo) {
  StartTwo();
  bool done = false;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](const absl::StatusOr<uint64_t>& bytes) { done = bytes.ok(); });
  Pump();
  AdvanceMs(500);
  EXPECT_TRUE(done);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 6u);
  EXPECT_EQ(receipts_[0].unerased_blocks, 0u);
}

}  // namespace
}  // namespace kvartal::engine
