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
  // A budget of which nothing is left but what a second brings.
  void StartSpent(uint64_t bytes_per_second) {
    options_.nvme_write_bytes_per_second = bytes_per_second;
    Start({Rules("a/p", 4 * kMiB, 128 * kMiB)});
    ns_ = Open("a/p");
    // Small blocks of a continuing conversation would be written until nothing is left: so do new ones until half is.
    uint64_t first = 100'000;
    while (!engine_->stats().write_budget_scarce) {
      Store("a/p", ns_, Chain(first, 8));
      Pump();
      first += 8;
    }
  }
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
  const uint64_t most = 2 * kBlockBytesMax;
  EXPECT_LE(nvme_->counters().bytes_written, most);
  EXPECT_GT(nvme_->counters().bytes_written, most - 2 * kTestBlockBytes) << "nor is any of it left";
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
