// An erasure that a crash cuts short is finished by the next process: nothing is served meanwhile, all is zeroed, and
// the receipt comes until somebody keeps it.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;

constexpr uint64_t kSlotBytes = kTestBlockBytes;
constexpr size_t kPagesOfBlock = kTestBlockBytes / 4096;

class ErasureCrashTest : public EngineTest {
 protected:
  void StartTwo() {
    options_.removed_grace_ms = 5000;
    Start({Rules("a/p", 16 * kMiB, 32 * kMiB), Rules("b/p", 16 * kMiB, 32 * kMiB)});
    Store("a/p", Open("a/p"), Chain(1, 6));
    Store("b/p", Open("b/p"), Chain(50, 3));
    Pump();
  }
  // With the disk held nothing is zeroed; a crash then loses what was asked of it.
  void DropAndCrash() {
    file_->Hold();
    engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) { FAIL(); });
    Pump();
    AdvanceMs(300);
    ASSERT_EQ(catalog_disk_->tombstones.size(), 1u);
    ASSERT_EQ(PagesOnDisk(KeyOf(1)), kPagesOfBlock);
    ASSERT_TRUE(receipts_.empty());
    Restart();
  }
  size_t OldPages() const {
    size_t pages = 0;
    for (uint64_t i = 1; i <= 6; ++i) pages += PagesOnDisk(KeyOf(i));
    return pages;
  }
  uint64_t NvmeBytes() const { return engine_->stats().charged_bytes[TierIndex(TierKind::kNvme)]; }
};

TEST_F(ErasureCrashTest, ADropIsFinishedAndCertifiedAfterARestart) {
  StartTwo();
  DropAndCrash();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u) << "served to nobody meanwhile";
  EXPECT_EQ(Matched(Open("b/p"), Chain(50, 3)), 3u);
  EXPECT_EQ(NvmeBytes(), 9 * (kSlotBytes + kNvmeHeaderBytes)) << "charged until it is zeros";
  engine_->CheckInvariants();
  AdvanceMs(500);
  EXPECT_EQ(OldPages(), 0u);
  EXPECT_EQ(NvmeBytes(), 3 * (kSlotBytes + kNvmeHeaderBytes));
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].tenant, "a/p");
  EXPECT_EQ(receipts_[0].reason, DropReason::kRemoved);
  EXPECT_TRUE(receipts_[0].resumed);
  EXPECT_EQ(receipts_[0].blocks, 6u);
  EXPECT_EQ(receipts_[0].tier_bytes[TierIndex(TierKind::kDram)], 6 * kSlotBytes) << "counted before the crash";
  EXPECT_EQ(receipts_[0].tier_bytes[TierIndex(TierKind::kNvme)], 6 * kSlotBytes);
  EXPECT_EQ(receipts_[0].unerased_blocks, 0u);
  EXPECT_TRUE(catalog_disk_->erasures.empty());
  EXPECT_EQ(engine_->stats().tenants.size(), 2u) << "what was erased is forgotten";
  Restart();
  AdvanceMs(500);
  EXPECT_EQ(receipts_.size(), 1u) << "once";
  EXPECT_EQ(Matched(Open("b/p"), Chain(50, 3)), 3u);
  engine_->CheckInvariants();
}

TEST_F(ErasureCrashTest, WhatTheOwnerStoresMeanwhileIsItsOwn) {
  StartTwo();
  DropAndCrash();
  file_->Hold();
  const NamespaceId ns = Open("a/p");
  EXPECT_EQ(Store("a/p", ns, Chain(1, 6)), 6u) << "the very keys that are being erased";
  AdvanceMs(300);
  EXPECT_EQ(Matched(ns, Chain(1, 6)), 6u);
  file_->Release();
  AdvanceMs(500);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(OldPages(), 6 * kPagesOfBlock) << "each once: the new ones";
  Restart();
  EXPECT_EQ(LookupAndLoad("a/p", Open("a/p"), Chain(1, 6)).count, 6u);
  engine_->CheckInvariants();
}

TEST_F(ErasureCrashTest, WhatIsStoredRightAfterTheCrashIsNotTakenForWhatIsOwed) {
  StartTwo();
  file_->Hold();
  engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  ASSERT_TRUE(executor_->RunOne());  // the erasure is noted, its tombstone is not there yet
  ASSERT_EQ(catalog_disk_->erasures.size(), 1u);
  ASSERT_TRUE(catalog_disk_->tombstones.empty());
  Restart();  // in the very tick
  EXPECT_EQ(Store("a/p", Open("a/p"), Chain(1, 3)), 3u);
  Pump();
  AdvanceMs(500);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 3)), 3u);
}

TEST_F(ErasureCrashTest, ACrashAfterACrashGoesOn) {
  StartTwo();
  DropAndCrash();
  for (int i = 0; i < 3; ++i) {
    file_->Hold();
    AdvanceMs(300);
    EXPECT_EQ(OldPages(), 6 * kPagesOfBlock);
    Restart();
    EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  }
  AdvanceMs(500);
  EXPECT_EQ(OldPages(), 0u);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 6u);
}

TEST_F(ErasureCrashTest, ARemovedTenantsErasureGoesOnWithoutAnotherGrace) {
  StartTwo();
  rules_.erase(rules_.begin());
  engine_->ApplyPolicy(Table());
  AdvanceMs(4900);
  file_->Hold();
  AdvanceMs(400);
  ASSERT_EQ(catalog_disk_->tombstones.size(), 1u);
  Restart();
  AdvanceMs(500);
  EXPECT_EQ(OldPages(), 0u);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].tenant, "a/p") << "by the name it had";
  EXPECT_EQ(receipts_[0].blocks, 6u);
  EXPECT_EQ(engine_->stats().tenants.size(), 1u);
}

TEST_F(ErasureCrashTest, ABlockWhoseRecordWasNotWrittenYetIsErasedToo) {
  StartTwo();
  catalog_->FailWrites(absl::UnavailableError("slow disk"));
  Store("a/p", Open("a/p"), Chain(30, 2));
  Pump();
  ASSERT_EQ(PagesOnDisk(KeyOf(30)), kPagesOfBlock);
  catalog_->FailWrites(absl::OkStatus());
  file_->Hold();
  engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  Pump();
  ASSERT_EQ(catalog_disk_->records.size(), 9u) << "none of the last two";
  Restart();
  AdvanceMs(500);
  EXPECT_EQ(PagesOnDisk(KeyOf(30)) + PagesOnDisk(KeyOf(31)) + OldPages(), 0u);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 8u);
  EXPECT_EQ(Matched(Open("b/p"), Chain(50, 3)), 3u);
  engine_->CheckInvariants();
}

TEST_F(ErasureCrashTest, AReceiptThatNobodyKeptIsToldAgainAfterARestart) {
  StartTwo();
  keeps_receipts_ = false;
  bool done = false;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](const absl::StatusOr<uint64_t>& bytes) { done = bytes.ok(); });
  AdvanceMs(500);
  ASSERT_TRUE(done);
  ASSERT_EQ(receipts_.size(), 1u);
  untold_.clear();
  Restart();
  AdvanceMs(500);
  ASSERT_EQ(receipts_.size(), 2u);
  EXPECT_EQ(receipts_[1].tenant, "a/p");
  EXPECT_EQ(receipts_[1].blocks, 6u);
  EXPECT_EQ(receipts_[1].bytes(), receipts_[0].bytes());
  EXPECT_TRUE(receipts_[1].resumed);
  untold_.back()(true);
  AdvanceMs(200);
  EXPECT_TRUE(catalog_disk_->erasures.empty());
  Restart();
  AdvanceMs(500);
  EXPECT_EQ(receipts_.size(), 2u);
}

TEST_F(ErasureCrashTest, AReceiptThatCouldNotBeKeptIsToldAgainInLifeAndNothingIsCountedTwice) {
  StartTwo();
  rules_[0].max_age_ms = 1000;
  engine_->ApplyPolicy(Table());
  keeps_receipts_ = false;
  AdvanceMs(1500);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 6u);
  Store("a/p", Open("a/p"), Chain(20, 2));
  AdvanceMs(1500);
  EXPECT_EQ(receipts_.size(), 1u) << "one after the other";
  std::exchange(untold_, {}).back()(false);
  AdvanceMs((kReceiptRetryTicks + 2) * kTickMs);
  ASSERT_EQ(receipts_.size(), 2u);
  EXPECT_EQ(receipts_[1].blocks, 8u) << "with what has come since";
  EXPECT_EQ(receipts_[1].tier_bytes[TierIndex(TierKind::kNvme)], 8 * kSlotBytes);
  std::exchange(untold_, {}).back()(true);
  AdvanceMs(2 * kReceiptRetryTicks * kTickMs);
  EXPECT_EQ(receipts_.size(), 2u);
  EXPECT_TRUE(catalog_disk_->erasures.empty());
}

TEST_F(ErasureCrashTest, TheReceiptOfOldBlocksOutlivesACrash) {
  StartTwo();
  rules_[0].max_age_ms = 1000;
  engine_->ApplyPolicy(Table());
  keeps_receipts_ = false;
  AdvanceMs(1500);
  ASSERT_EQ(OldPages(), 0u);
  untold_.clear();
  keeps_receipts_ = true;
  Restart();
  AdvanceMs(300);
  ASSERT_EQ(receipts_.size(), 2u);
  EXPECT_EQ(receipts_[1].reason, DropReason::kMaxAge);
  EXPECT_EQ(receipts_[1].tenant, "a/p");
  EXPECT_EQ(receipts_[1].blocks, 6u);
  EXPECT_EQ(receipts_[1].oldest_first_commit_ms, receipts_[0].oldest_first_commit_ms);
  EXPECT_TRUE(catalog_disk_->erasures.empty());
}

TEST_F(ErasureCrashTest, WhatCouldNotBeZeroedIsNotCertifiedInALaterLifeEither) {
  StartTwo();
  const auto drop = [this] {
    std::optional<absl::Status> ended;
    engine_->DropTenant(engine_->FindTenant("a/p"),
                        [&](const absl::StatusOr<uint64_t>& bytes) { ended = bytes.status(); });
    AdvanceMs(500);
    return ended.value_or(absl::DeadlineExceededError("the drop did not end"));
  };
  file_->FaultNext(testing::DiskFault::kIoError);
  EXPECT_FALSE(drop().ok());
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].unerased_blocks, 1u);
  Restart();
  EXPECT_FALSE(drop().ok());
  ASSERT_EQ(receipts_.size(), 2u);
  EXPECT_EQ(receipts_[1].unerased_blocks, 1u);
  // Nor when the tenant was gone and forgotten in between.
  const policy::TenantRules rules = rules_[0];
  rules_.erase(rules_.begin());
  engine_->ApplyPolicy(Table());
  AdvanceMs(7000);
  ASSERT_EQ(engine_->stats().tenants.size(), 1u);
  ASSERT_EQ(receipts_.size(), 3u) << "once, not every grace again";
  EXPECT_EQ(receipts_[2].unerased_blocks, 1u);
  rules_.push_back(rules);
  engine_->ApplyPolicy(Table());
  EXPECT_FALSE(drop().ok());
}

TEST_F(ErasureCrashTest, ABlockCountsOnceThoughItsCopiesGoOneAfterTheOther) {
  StartTwo();
  memory_->SetQueueMax(1);
  rules_[0].max_age_ms = 1000;
  engine_->ApplyPolicy(Table());
  AdvanceMs(10'000);
  uint64_t blocks = 0, dram_bytes = 0, nvme_bytes = 0;
  for (const DeletionReceipt& receipt : receipts_) {
    blocks += receipt.blocks;
    dram_bytes += receipt.tier_bytes[TierIndex(TierKind::kDram)];
    nvme_bytes += receipt.tier_bytes[TierIndex(TierKind::kNvme)];
  }
  EXPECT_EQ(blocks, 6u);
  EXPECT_EQ(dram_bytes, 6 * kSlotBytes);
  EXPECT_EQ(nvme_bytes, 6 * kSlotBytes);
}

TEST_F(ErasureCrashTest, NobodyEvictsWhatIsToBeZeroed) {
  nvme_capacity_bytes_ = 12 * (kSlotBytes + kNvmeHeaderBytes);
  StartTwo();
  file_->Hold();
  engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  Pump();
  // More than is free: the rest is a removed tenant's, which is the first to give otherwise.
  Store("b/p", Open("b/p"), Chain(100, 8));
  AdvanceMs(300);
  for (const TenantStats& tenant : engine_->stats().tenants) {
    EXPECT_EQ(tenant.tiers[TierIndex(TierKind::kNvme)].drop(DropReason::kTakenByOther).count, 0u) << tenant.name;
  }
  file_->Release();
  AdvanceMs(500);
  EXPECT_EQ(OldPages(), 0u);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 6u);
}

}  // namespace
}  // namespace kvartal::engine
