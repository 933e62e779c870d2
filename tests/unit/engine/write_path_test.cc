// What is written to the disk, where, and what is not.
#include <map>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class WritePathTest : public EngineTest {};

TEST_F(WritePathTest, APromotedBlockKeepsItsCopyAndAnEvictionThenWritesNothing) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 16)), 16u);
  Pump();
  ASSERT_EQ(Store("a/p", ns, Chain(100, 16)), 16u);
  Pump();
  const uint64_t written = nvme_->counters().blocks_written;
  ASSERT_EQ(written, 32u);
  // Two chains that do not fit together take each other's place in memory, over and over.
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(LookupAndLoad("a/p", ns, Chain(1, 16)).count, 16u);
    EXPECT_EQ(LookupAndLoad("a/p", ns, Chain(100, 16)).count, 16u);
  }
  EXPECT_GT(TierStatsOf("a/p", TierKind::kDram).evictions(), 200u);
  EXPECT_EQ(nvme_->counters().blocks_written, written);
  engine_->CheckInvariants();
}

TEST_F(WritePathTest, BlocksOfOneStoreLieTogetherWhoeverElseStoresMeanwhile) {
  Start({Rules("a/p", 64 * kMiB, 64 * kMiB), Rules("b/p", 64 * kMiB, 64 * kMiB)});
  const NamespaceId of_a = Open("a/p");
  const NamespaceId of_b = Open("b/p");
  constexpr size_t kBlocks = 12;
  const auto a = Reserve(kGroup, of_a, Chain(1, kBlocks));
  const auto b = Reserve(kGroup, of_b, Chain(100, kBlocks));
  for (size_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(engine_->Commit(kGroup, a[i].reservation, 0), CommitOutcome::kVisible);
    ASSERT_EQ(engine_->Commit(kGroup, b[i].reservation, 0), CommitOutcome::kVisible);
    if (i % 3 == 0) Pump();  // some are written when the next is committed, some are on their way
  }
  Pump();
  for (const uint64_t first : {1u, 100u}) {
    std::map<size_t, uint32_t> slots;
    for (const auto& [slot, header] : catalog_disk_->records) {
      for (size_t i = 0; i < kBlocks; ++i) {
        if (header.identity.key == KeyOf(first + i)) slots[i] = slot;
      }
    }
    ASSERT_EQ(slots.size(), kBlocks);
    constexpr uint32_t kStride = (kTestBlockBytes + kNvmeHeaderBytes) / kSlotAlignBytes;
    for (size_t i = 1; i < kBlocks; ++i) EXPECT_EQ(slots[i], slots[i - 1] + kStride) << "block " << i;
  }
  engine_->CheckInvariants();
}

class WriteBudgetTest : public WritePathTest {
 protected:
  static constexpr uint64_t kWrittenBytes = kTestBlockBytes + kNvmeHeaderBytes;

  // A budget of which half is left, and nothing is known of what is worth a write.
  void StartSpent(uint64_t bytes_per_second) {
    options_.nvme_write_bytes_per_second = bytes_per_second;
    Start({Rules("a/p", 4 * kMiB, 128 * kMiB)});
    ns_ = Open("a/p");
    for (uint64_t first = 100'000; Asks() == policy::WriteWorth::kAny; first += 8) {
      Store("a/p", ns_, Chain(first, 8));
      Pump();
    }
  }
  // Blocks that nobody used before, each of which is used again.
  void StoreAndUse(uint64_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(Store("a/p", ns_, Chain(first + i, 1)), 1u);
      Pump();
      ASSERT_EQ(Matched(ns_, Chain(first + i, 1)), 1u);
    }
  }
  // At most so many.
  void StoreAndUseUntilAsked(policy::WriteWorth worth, uint64_t first, size_t count) {
    for (size_t i = 0; i < count && Asks() != worth; ++i) StoreAndUse(first + i, 1);
    ASSERT_EQ(Asks(), worth);
  }
  // Is a block that nobody used before written at once?
  bool WritesThrough(uint64_t number, const BlockKey* parent = nullptr) {
    const uint64_t before = StatsOf("a/p").write_throughs;
    const auto blocks = Reserve(kGroup, ns_, Chain(number, 1), 0, parent, parent == nullptr ? 0 : 1);
    EXPECT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
    Pump();
    return StatsOf("a/p").write_throughs > before;
  }
  policy::WriteWorth Asks() const { return engine_->stats().write_budget_asks; }
  uint64_t Saved() const { return engine_->stats().write_budget_saved_bytes; }
  uint64_t Written() const { return nvme_->counters().blocks_written; }
  NamespaceId ns_;
};

TEST_F(WriteBudgetTest, WithoutOneEveryBlockIsWrittenThrough) {
  Start({Rules("a/p", 64 * kMiB, 128 * kMiB)});
  ASSERT_EQ(Store("a/p", Open("a/p"), Chain(1, 200)), 200u);
  Pump();
  EXPECT_EQ(Written(), 200u);
  EXPECT_EQ(engine_->stats().write_budget_bytes_per_second, 0u);
}

TEST_F(WriteBudgetTest, WhenItIsLowOnlyWhatWasUsedAgainIsWritten) {
  StartSpent(1);
  const uint64_t before = Written();
  const uint64_t refused = TierStatsOf("a/p", TierKind::kNvme).refusal(policy::Refusal::kWriteBudget).count;
  ASSERT_EQ(Store("a/p", ns_, Chain(1, 2)), 2u);
  Pump();
  EXPECT_EQ(Written(), before) << "nobody has used them again";
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).refusal(policy::Refusal::kWriteBudget).count, refused + 2);
  EXPECT_EQ(Matched(ns_, Chain(1, 1)), 1u);
  // Their memory is wanted: the one that was used again moves down, the other is dropped.
  ASSERT_EQ(Store("a/p", ns_, Chain(200, 16)), 16u);
  Pump();
  EXPECT_EQ(Matched(ns_, Chain(1, 1)), 1u);
  EXPECT_EQ(Matched(ns_, Chain(2, 1)), 0u);
  EXPECT_EQ(StatsOf("a/p").demotions, 1u);
  engine_->CheckInvariants();
}

TEST_F(WriteBudgetTest, BelowAHalfBlocksAreWrittenWhoseLikeIsUsedAgainBelowAQuarterTheyAreNot) {
  ASSERT_EQ(options_.eviction, "lru") << "what is worth a write is learnt all the same";
  StartSpent(1);
  EXPECT_FALSE(WritesThrough(1));
  StoreAndUse(1000, 20);
  ASSERT_EQ(Asks(), policy::WriteWorth::kLikely);
  EXPECT_TRUE(WritesThrough(2));
  StoreAndUseUntilAsked(policy::WriteWorth::kProven, 2000, 200);
  EXPECT_FALSE(WritesThrough(3));
  EXPECT_GT(Saved(), kBlockBytesMax / 2 - 2 * kWrittenBytes) << "kept for what was used again itself";
  engine_->CheckInvariants();
}

TEST_F(WriteBudgetTest, WhoGetsNvmeLaterLearnsFromThenOn) {
  options_.nvme_write_bytes_per_second = 1;
  Start({Rules("a/p", 4 * kMiB)});
  ns_ = Open("a/p");
  StoreAndUse(1000, 20);
  rules_[0].tier(TierKind::kNvme).limit_bytes = 128 * kMiB;
  engine_->ApplyPolicy(Table());
  WritesThrough(1);  // or what makes room for it is written
  ASSERT_EQ(Asks(), policy::WriteWorth::kLikely);
  EXPECT_FALSE(WritesThrough(2)) << "nobody kept what could be known of it";
  StoreAndUse(2000, 20);
  EXPECT_TRUE(WritesThrough(3));
  rules_[0].tier(TierKind::kNvme).limit_bytes = 0;
  engine_->ApplyPolicy(Table());
  StoreAndUse(3000, 20);
  engine_->CheckInvariants();
}

TEST_F(WriteBudgetTest, WhenItIsShortNothingIsWrittenThatNobodyWouldFind) {
  StartSpent(1);
  ASSERT_FALSE(WritesThrough(1));
  ASSERT_EQ(Matched(ns_, Chain(1, 1)), 1u);
  StoreAndUse(1000, 6);
  ASSERT_EQ(Asks(), policy::WriteWorth::kLikely);
  const BlockKey unwritten = KeyOf(1), written = KeyOf(1005);
  std::vector<TierKind> tiers;
  EXPECT_FALSE(WritesThrough(2, &unwritten)) << "its parent is in memory alone";
  EXPECT_TRUE(WritesThrough(3)) << "one like it without a parent";
  EXPECT_TRUE(WritesThrough(4, &written));
  // Their memory is wanted: the tail goes first, the head after it, and both are found.
  StoreAndUse(5000, 20);
  EXPECT_EQ(Matched(ns_, Chain(1, 2), &tiers), 2u);
  EXPECT_EQ(tiers, std::vector<TierKind>(2, TierKind::kNvme));
  engine_->CheckInvariants();
}

TEST_F(WriteBudgetTest, ABlockWaitsForAParentThatStillWaitsForTheDisk) {
  StartSpent(1);
  StoreAndUse(1000, 20);
  ASSERT_EQ(Asks(), policy::WriteWorth::kLikely);
  const uint64_t refused = TierStatsOf("a/p", TierKind::kNvme).refusal(policy::Refusal::kWriteBudget).count;
  const uint64_t before = StatsOf("a/p").write_throughs;
  file_->SetQueueMax(1);
  const auto blocks = Reserve(kGroup, ns_, Chain(1, 3));
  ASSERT_EQ(blocks.size(), 3u);
  for (const ReservedBlock& block : blocks) {
    ASSERT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
  }
  Pump();
  ASSERT_EQ(StatsOf("a/p").write_throughs, before + 1) << "the disk takes one at a time";
  file_->SetQueueMax(0);
  AdvanceMs(60'000);
  EXPECT_EQ(StatsOf("a/p").write_throughs, before + 3);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).refusal(policy::Refusal::kWriteBudget).count, refused);
  engine_->CheckInvariants();
}

TEST_F(WriteBudgetTest, WhileThereIsPlentyABlockIsWrittenWhoseParentWillBe) {
  StartSpent(1 * kMiB);
  ASSERT_FALSE(WritesThrough(1));
  AdvanceMs(20'000);
  ASSERT_EQ(Asks(), policy::WriteWorth::kAny);
  const BlockKey unwritten = KeyOf(1);
  EXPECT_TRUE(WritesThrough(2, &unwritten));
}

TEST_F(WriteBudgetTest, ZerosWearTheDiskAsBlocksDoAndAreWrittenWhateverIsLeft) {
  options_.nvme_write_bytes_per_second = 1;
  Start({Rules("a/p", 4 * kMiB, 128 * kMiB)});
  ns_ = Open("a/p");
  const uint64_t at_start = Saved(), on_disk = WornBytes();
  for (uint64_t first = 1; Saved() >= kWrittenBytes && first < 500; ++first) StoreAndUse(first, 1);
  ASSERT_LT(Saved(), kWrittenBytes);
  const uint64_t blocks = TierStatsOf("a/p", TierKind::kNvme).blocks;
  ASSERT_EQ(at_start - Saved(), blocks * kWrittenBytes);
  rules_[0].max_age_ms = 1000;
  engine_->ApplyPolicy(Table());
  AdvanceMs(5000);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 0u);
  EXPECT_EQ(WornBytes() - on_disk, 2 * blocks * kWrittenBytes) << "and zeros over each";
  EXPECT_FALSE(WritesThrough(1000)) << "that is owed now";
  AdvanceMs(1000);
  EXPECT_EQ(Saved(), 0u);
  engine_->CheckInvariants();
}

TEST_F(WriteBudgetTest, TimeBringsItBack) {
  StartSpent(1 * kMiB);
  const uint64_t before = Written();
  AdvanceMs(20'000);
  ASSERT_EQ(Store("a/p", ns_, Chain(1, 4)), 4u);
  Pump();
  EXPECT_EQ(Written(), before + 4);
}

TEST_F(WriteBudgetTest, ItIsNeverExceededByWhatIsUsedAgain) {
  StartSpent(1);
  // A hit between store and eviction makes every block worth writing.
  for (uint64_t first = 1; first < 4000; first += 8) {
    Store("a/p", ns_, Chain(first, 8));
    Matched(ns_, Chain(first, 8));
    Pump();
  }
  const uint64_t most = kBlockBytesMax;  // what a start has, of the least that may be saved
  EXPECT_LE(nvme_->counters().bytes_written, most);
  EXPECT_GT(nvme_->counters().bytes_written, most - 2 * kTestBlockBytes) << "nor is any of it left";
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
