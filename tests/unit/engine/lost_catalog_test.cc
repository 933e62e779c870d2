// A catalog that is lost, or cannot be read to its end: the headers of the file bring back what it would have said,
// while lookups are served.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class LostCatalogTest : public EngineTest {
 protected:
  void StartWith(size_t blocks) {
    Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
    for (uint64_t first = 1; first <= blocks; first += 20) Store("a/p", Open("a/p"), Chain(first, 20));
    Pump();
    ASSERT_EQ(StatsOf("a/p").durable_blocks, blocks);
  }
  void StoreTiny(NamespaceId ns, const std::vector<BlockKey>& keys) {
    for (const ReservedBlock& block : Reserve(kGroup, ns, keys)) engine_->Commit(kGroup, block.reservation, 0);
  }
  void RestartWithoutWaiting() {
    recovers_at_once_ = false;
    Restart();
  }
  // Pumps until some blocks are found; how many of `count` are then.
  size_t FirstFound(size_t count) {
    const NamespaceId ns = Open("a/p");
    for (;;) {
      size_t found = 0;
      for (uint64_t first = 1; first <= count; first += 20) found += Matched(ns, Chain(first, 20));
      if (found > 0 || recovered_.has_value() || !executor_->RunOne()) return found;
    }
  }
};

TEST_F(LostCatalogTest, WhileRecordsAreReadLookupsAreServed) {
  StartWith(80);
  RestartWithoutWaiting();
  const size_t early = FirstFound(80);
  EXPECT_GT(early, 0u);
  EXPECT_LT(early, 80u) << "nobody waited for all of it";
  EXPECT_TRUE(engine_->stats().recovering);
  Pump();
  EXPECT_FALSE(engine_->stats().recovering);
  EXPECT_EQ(FirstFound(80), 80u);
}

TEST_F(LostCatalogTest, WhileHeadersAreReadLookupsAreServed) {
  Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p", 1, 1, 4096);
  // More than one batch of headers.
  for (uint64_t first = 0; first < 2 * kRecoveryBatchMax; first += 64) StoreTiny(ns, Chain(first, 64));
  Pump();
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  RestartWithoutWaiting();
  const NamespaceId again = Open("a/p", 1, 1, 4096);
  size_t found = 0;
  while (found == 0 && executor_->RunOne()) {
    for (uint64_t first = 0; first < 2 * kRecoveryBatchMax; first += 64) found += Matched(again, Chain(first, 64));
  }
  EXPECT_GT(found, 0u);
  EXPECT_LT(found, 2 * kRecoveryBatchMax);
  EXPECT_TRUE(engine_->stats().recovering);
  Pump();
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 2 * kRecoveryBatchMax);
  engine_->CheckInvariants();
}

TEST_F(LostCatalogTest, ACatalogThatCannotBeReadToItsEndIsCompletedFromTheHeaders) {
  for (const absl::Status& why : {absl::DataLossError("a damaged table"), absl::UnavailableError("EIO"),
                                  absl::ResourceExhaustedError("no space")}) {
    SCOPED_TRACE(why.ToString());
    StartWith(80);
    const uint64_t charged = TierStatsOf("a/p", TierKind::kNvme).charged_bytes;
    RestartWithoutWaiting();
    catalog_->FailNextLoad(why);  // after its first batch
    Pump();
    ASSERT_TRUE(recovered_.has_value() && recovered_->ok());
    EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, charged) << "each block once";
    EXPECT_EQ(catalog_disk_->records.size(), 80u) << "records that were there stay, the others are put again";
    const NamespaceId ns = Open("a/p");
    for (uint64_t first = 1; first <= 80; first += 20) {
      const Loaded loaded = LookupAndLoad("a/p", ns, Chain(first, 20));
      EXPECT_EQ(loaded.count, 20u);
      EXPECT_EQ(loaded.wrong, 0u);
    }
    engine_->CheckInvariants();
    Shutdown();
    recovers_at_once_ = true;
  }
}

// kill -9 again, at every step of a scan: what was durable is, for what was not scanned is looked for once more.
TEST_F(LostCatalogTest, AKillDuringAScanOfTheHeadersCostsNoDurableBlock) {
  StartWith(80);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  size_t kills = 0;
  for (size_t steps = 0; !catalog_disk_->complete; steps += 7, ++kills) {
    RestartWithoutWaiting();
    for (size_t i = 0; i < steps; ++i) executor_->RunOne();
  }
  EXPECT_GT(kills, 5u);
  RestartWithoutWaiting();
  Pump();
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 80u);
  EXPECT_EQ(FirstFound(80), 80u);
  engine_->CheckInvariants();
}

TEST_F(LostCatalogTest, AScanThatWasGivenUpIsBegunAnewAtTheNextStart) {
  StartWith(80);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  RestartWithoutWaiting();
  file_->FaultNext(testing::DiskFault::kIoError, 1000);
  Pump();
  AdvanceMs(1000);
  EXPECT_EQ(FirstFound(80), 0u);
  EXPECT_FALSE(catalog_disk_->complete);
  RestartWithoutWaiting();
  Pump();
  EXPECT_EQ(FirstFound(80), 80u);
  EXPECT_TRUE(catalog_disk_->complete);
}

// Not before every record is there: the catalog refused some at first.
TEST_F(LostCatalogTest, TheHeadersAreReadAgainUntilWhatTheyToldIsRecorded) {
  StartWith(80);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  RestartWithoutWaiting();
  catalog_->SetQueueMax(4);
  catalog_->FailWrites(absl::ResourceExhaustedError("no space left"));
  Pump();
  AdvanceMs(1000);
  EXPECT_EQ(FirstFound(80), 80u);
  EXPECT_FALSE(catalog_disk_->complete);
  catalog_->FailWrites(absl::OkStatus());
  while (catalog_disk_->records.size() < 80) {
    EXPECT_FALSE(catalog_disk_->complete);
    AdvanceMs(kTickMs);
  }
  AdvanceMs(kTickMs);
  EXPECT_TRUE(catalog_disk_->complete);
}

TEST_F(LostCatalogTest, ACatalogThatCannotBeSyncedIsAskedAgainWhenItMayBeOpenAnew) {
  StartWith(80);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  RestartWithoutWaiting();
  while (catalog_disk_->records.size() < 80) ASSERT_TRUE(executor_->RunOne());
  catalog_->FailWrites(absl::UnavailableError("EIO"));
  Pump();
  ASSERT_EQ(catalog_->counts().flushes, 1u);
  AdvanceMs(kCatalogReopenSeconds * 1000 - 2 * kTickMs);
  EXPECT_EQ(catalog_->counts().flushes, 1u);
  EXPECT_FALSE(catalog_disk_->complete);
  catalog_->FailWrites(absl::OkStatus());
  AdvanceMs(4 * kTickMs);
  EXPECT_TRUE(catalog_disk_->complete);
}

TEST_F(LostCatalogTest, APinThatIsSetWhileRecordsWaitForTheCatalogIsInThem) {
  policy::TenantRules rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.tier(TierKind::kNvme).guarantee_bytes = 64 * kMiB;
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 40));
  Pump();
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  RestartWithoutWaiting();
  catalog_->SetQueueMax(1);
  Pump();
  ASSERT_LT(catalog_disk_->records.size(), 40u);
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 40), 600'000), policy::Refusal::kNone);
  catalog_->SetQueueMax(0);
  AdvanceMs(3 * kTickMs);
  ASSERT_EQ(catalog_disk_->records.size(), 40u);
  Restart();
  Pump();
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 40u);
}

// The tombstone is there though a scan is not at its end: what it covers is erased, wherever it is found.
TEST_F(LostCatalogTest, WhatATombstoneCoversIsNotServedByItsHeader) {
  StartWith(80);
  catalog_disk_->complete = false;
  catalog_disk_->records.clear();
  tier::OwnerUidHash owner{};
  {
    RestartWithoutWaiting();
    Pump();
    owner = catalog_disk_->records.begin()->second.identity.owner;
  }
  catalog_disk_->complete = false;
  catalog_disk_->records.clear();
  catalog_disk_->tombstones[owner] = INT64_MAX;
  RestartWithoutWaiting();
  Pump();
  AdvanceMs(1000);
  EXPECT_EQ(FirstFound(80), 0u);
  for (uint64_t i = 1; i <= 80; ++i) EXPECT_EQ(PagesOnDisk(KeyOf(i)), 0u) << i;
}

TEST_F(LostCatalogTest, ADropThatACrashCutShortIsFinishedThoughTheCatalogCannotBeReadToItsEnd) {
  StartWith(80);
  bool ended = false;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](const absl::StatusOr<uint64_t>&) { ended = true; });
  while (catalog_disk_->tombstones.empty()) ASSERT_TRUE(executor_->RunOne());
  ASSERT_FALSE(ended);
  RestartWithoutWaiting();
  catalog_->FailNextLoad(absl::DataLossError("a damaged table"));
  Pump();
  AdvanceMs(1000);
  EXPECT_EQ(FirstFound(80), 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 0u);
  for (uint64_t i = 1; i <= 80; ++i) EXPECT_EQ(PagesOnDisk(KeyOf(i)), 0u) << i;
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_.back().unerased_blocks, 0u);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
