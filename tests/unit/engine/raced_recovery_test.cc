// What clients store while the records of the blocks before it still come in.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

class RacedRecoveryTest : public EngineTest {
 protected:
  static constexpr uint64_t kBlocks = 40;
  static constexpr int64_t kWriteThroughMs = 2 * int64_t{kTimerBusyTicks} * kTickMs;

  // kBlocks durable blocks of a life before, and no record of them yet.
  NamespaceId RestartWithRecordsToCome() {
    Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
    Store("a/p", Open("a/p"), Chain(1, kBlocks));
    Pump();
    EXPECT_EQ(durable_.size(), kBlocks);
    durable_.clear();
    recovers_at_once_ = false;
    Restart();
    catalog_->Hold();
    return Open("a/p");
  }
  void LetRecordsCome() {
    catalog_->Release();
    Pump();
    ASSERT_TRUE(recovered_.has_value() && recovered_->ok());
    engine_->CheckInvariants();
  }
  void ExpectAllSurviveAnotherRestart() {
    Restart();
    Pump();
    const Loaded loaded = LookupAndLoad("a/p", Open("a/p"), Chain(1, kBlocks));
    EXPECT_EQ(loaded.count, kBlocks);
    EXPECT_EQ(loaded.wrong, 0u);
  }
};

TEST_F(RacedRecoveryTest, AFillThatIsAbortedCostsNoDurableBlock) {
  const NamespaceId ns = RestartWithRecordsToCome();
  const auto filling = Reserve(kGroup, ns, Chain(1, 4));
  ASSERT_EQ(filling.size(), 4u);
  LetRecordsCome();
  EXPECT_EQ(StatsOf("a/p").durable_blocks, kBlocks);
  EXPECT_EQ(Matched(ns, Chain(1, kBlocks)), 0u) << "what is being filled is not visible";
  EXPECT_EQ(engine_->AbortGroup(kGroup), 4u);
  engine_->CheckInvariants();
  EXPECT_EQ(Matched(ns, Chain(1, kBlocks)), kBlocks);
  ExpectAllSurviveAnotherRestart();
}

TEST_F(RacedRecoveryTest, WhatWasStoredAnewIsDurableByTheRecordThatComesLater) {
  const NamespaceId ns = RestartWithRecordsToCome();
  EXPECT_EQ(Store("a/p", ns, Chain(1, 4)), 4u);
  const auto filling = Reserve(kGroup, ns, Chain(5, 4));
  EXPECT_TRUE(durable_.empty());
  LetRecordsCome();
  EXPECT_EQ(durable_.size(), 4u);
  for (const ReservedBlock& block : filling)
    EXPECT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
  EXPECT_EQ(durable_.size(), 8u);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, kBlocks);
  EXPECT_EQ(Matched(ns, Chain(1, kBlocks)), kBlocks);
  const uint64_t charged = TierStatsOf("a/p", TierKind::kNvme).charged_bytes;
  AdvanceMs(kWriteThroughMs);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, charged) << "it is not written twice";
  ExpectAllSurviveAnotherRestart();
}

TEST_F(RacedRecoveryTest, WhatIsNewBecomesDurableOnceRecoveryIsOver) {
  const NamespaceId ns = RestartWithRecordsToCome();
  EXPECT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  AdvanceMs(kWriteThroughMs);
  EXPECT_TRUE(durable_.empty());
  LetRecordsCome();
  AdvanceMs(kWriteThroughMs);
  EXPECT_EQ(durable_.size(), 8u);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, kBlocks + 8);
  ExpectAllSurviveAnotherRestart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(100, 8)), 8u);
}

// A pin that NVMe has no room for yet says nothing of whether the block is written there.
TEST_F(RacedRecoveryTest, WhatIsPinnedMeanwhileBecomesDurableAsWell) {
  const NamespaceId ns = RestartWithRecordsToCome();
  rules_[0].tier(TierKind::kDram).guarantee_bytes = 16 * kMiB;
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(100, 8), 0, 0, &places);
  ASSERT_EQ(places.size(), 8u);
  EXPECT_EQ(engine_->Pin(Holds(places), clock_.WallMs() + 3'600'000), policy::Refusal::kNone);
  engine_->Release(Holds(places));
  LetRecordsCome();
  AdvanceMs(kWriteThroughMs);
  EXPECT_EQ(durable_.size(), 8u);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, kBlocks + 8);
}

// Its time was up, and the policy that said so is gone by the time it may be written.
TEST_F(RacedRecoveryTest, WhatIsBeingErasedIsNotWrittenThrough) {
  const NamespaceId ns = RestartWithRecordsToCome();
  rules_[0].max_age_ms = 1000;
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Store("a/p", ns, Chain(100, 4)), 4u);
  memory_->Hold();
  AdvanceMs(1500);
  rules_[0].max_age_ms = 0;
  engine_->ApplyPolicy(Table());
  LetRecordsCome();
  AdvanceMs(kWriteThroughMs);
  memory_->Release();
  AdvanceMs(kWriteThroughMs);
  EXPECT_EQ(StatsOf("a/p").entries, kBlocks);
  EXPECT_TRUE(durable_.empty());
  engine_->CheckInvariants();
}

// The same when the catalog is gone, and headers come in its place.
TEST_F(RacedRecoveryTest, AHeaderThatComesLaterIsNoLess) {
  Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, kBlocks));
  Pump();
  durable_.clear();
  recovers_at_once_ = false;
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  Restart();
  file_->Hold();
  const NamespaceId ns = Open("a/p");
  EXPECT_EQ(Store("a/p", ns, Chain(1, 4)), 4u);
  const auto filling = Reserve(kGroup, ns, Chain(5, 4));
  file_->Release();
  LetRecordsCome();
  EXPECT_EQ(engine_->AbortGroup(kGroup), filling.size());
  EXPECT_EQ(durable_.size(), 4u);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, kBlocks);
  EXPECT_EQ(Matched(ns, Chain(1, kBlocks)), kBlocks);
  ExpectAllSurviveAnotherRestart();
}

// Each the other's parent, once in either life, as deep as their client says: a circle has no leaf that could go.
TEST_F(RacedRecoveryTest, BlocksThatAreParentsOfEachOtherTieNoKnotThatNoDropCouldUndo) {
  Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  const BlockKey first = KeyOf(7), second = KeyOf(8);
  const auto reserve = [&](const BlockKey& key, const BlockKey* parent, uint32_t depth) {
    return Reserve(kGroup, Open("a/p"), {key}, 0, parent, depth)[0].reservation;
  };
  engine_->Commit(kGroup, reserve(first, nullptr, 0), 0);
  engine_->Commit(kGroup, reserve(second, &first, 5), 0);
  Pump();
  ASSERT_EQ(durable_.size(), 2u);
  recovers_at_once_ = false;
  Restart();
  catalog_->Hold();
  const ReservationId above = reserve(second, nullptr, 5);
  const ReservationId below = reserve(first, &second, 0);
  ASSERT_TRUE(engine_->Abort(kGroup, above)) << "what is left of it is the parent";
  LetRecordsCome();
  engine_->Commit(kGroup, below, 0);
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  AdvanceMs(5000);
  ASSERT_TRUE(dropped.has_value()) << "it does not end";
  EXPECT_TRUE(dropped->ok()) << dropped->status();
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
}

}  // namespace
}  // namespace kvartal::engine
