// Reserve, Commit, Abort: what becomes visible when, who may do what, and what is charged meanwhile.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::Refusal;

class StoreTest : public EngineTest {};

TEST_F(StoreTest, NothingIsVisibleBeforeCommit) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const auto keys = Chain(1, 4);
  const auto blocks = Reserve(kGroup, ns, keys);
  ASSERT_EQ(blocks.size(), 4u);
  for (const ReservedBlock& block : blocks) ASSERT_EQ(block.outcome, ReserveOutcome::kGranted);
  EXPECT_EQ(Matched(ns, keys), 0u);
  EXPECT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  EXPECT_EQ(engine_->Commit(kGroup, blocks[2].reservation, 0), CommitOutcome::kVisible);
  EXPECT_EQ(Matched(ns, keys), 1u) << "a gap ends a match";
  engine_->Commit(kGroup, blocks[1].reservation, 0);
  EXPECT_EQ(Matched(ns, keys), 3u);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, MemoryIsChargedBeforeItIsPopulatedAndRefundedWhenThatFails) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  memory_->Hold();
  bool answered = false;
  engine_->Reserve({.group = kGroup, .ns = ns, .keys = Chain(1, 1)},
                   [&](std::vector<ReservedBlock>) { answered = true; });
  Pump();
  EXPECT_FALSE(answered);
  EXPECT_GT(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 0u);
  memory_->FailNextPopulates(1);
  memory_->Release();
  Pump();
  EXPECT_TRUE(answered);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).refusal(Refusal::kOutOfMemory).count, 1u);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, AReservationEndsOnceAndBelongsToOneGroup) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const auto blocks = Reserve(kGroup, ns, Chain(1, 3));
  EXPECT_EQ(engine_->Commit(GroupId(8), blocks[0].reservation, 0), CommitOutcome::kNotYours);
  EXPECT_FALSE(engine_->Abort(GroupId(8), blocks[0].reservation));
  EXPECT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  EXPECT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kNotFilling) << "commit twice";
  EXPECT_TRUE(engine_->Abort(kGroup, blocks[1].reservation));
  EXPECT_EQ(engine_->Commit(kGroup, blocks[1].reservation, 0), CommitOutcome::kNotFilling) << "commit after abort";
  EXPECT_FALSE(engine_->Abort(kGroup, blocks[1].reservation)) << "abort twice";
  EXPECT_EQ(engine_->Commit(kGroup, ReservationId(999), 0), CommitOutcome::kNotFilling);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, ABlockWithShardsIsVisibleWhenTheLastRankHasCommitted) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1, /*shards=*/3, /*shard_bytes=*/10'000);
  const auto keys = Chain(1, 2);
  const auto rank0 = Reserve(kGroup, ns, keys, 0, nullptr, 0, 0);
  const auto rank1 = Reserve(kGroup, ns, keys, 0, nullptr, 0, 1);
  const auto rank2 = Reserve(kGroup, ns, keys, 0, nullptr, 0, 2);
  ASSERT_EQ(rank2[1].outcome, ReserveOutcome::kGranted);
  EXPECT_EQ(rank1[0].arena_offset, rank0[0].arena_offset + 12 * kKiB)
      << "shards are padded to 4 KiB and lie side by side";
  EXPECT_EQ(rank1[0].reservation, rank0[0].reservation);
  EXPECT_EQ(engine_->Commit(kGroup, rank0[0].reservation, 0), CommitOutcome::kShardStored);
  EXPECT_EQ(engine_->Commit(kGroup, rank0[0].reservation, 0), CommitOutcome::kNotFilling) << "the same shard twice";
  EXPECT_EQ(engine_->Commit(kGroup, rank0[0].reservation, 1), CommitOutcome::kShardStored);
  EXPECT_EQ(Matched(ns, keys), 0u);
  EXPECT_EQ(engine_->Commit(kGroup, rank0[0].reservation, 2), CommitOutcome::kVisible);
  EXPECT_EQ(Matched(ns, keys), 1u);
}

TEST_F(StoreTest, AShardNobodyReservedCannotBeCommitted) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1, 2, 4096);
  const auto blocks = Reserve(kGroup, ns, Chain(1, 1));
  EXPECT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 1), CommitOutcome::kNotFilling);
  EXPECT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 99), CommitOutcome::kNotFilling);
}

TEST_F(StoreTest, TwoGroupsDoNotFillTheSameBlock) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const auto mine = Reserve(kGroup, ns, Chain(1, 2));
  const auto theirs = Reserve(GroupId(8), ns, Chain(1, 3));
  EXPECT_EQ(theirs[0].reason, Refusal::kBusy);
  EXPECT_EQ(theirs[2].outcome, ReserveOutcome::kGranted) << "the chain goes on behind what others fill";
  engine_->Commit(kGroup, mine[0].reservation, 0);
  EXPECT_EQ(Reserve(GroupId(8), ns, Chain(1, 1))[0].outcome, ReserveOutcome::kExists);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, TenantsNeverSeeEachOthersBlocks) {
  Start({Rules("a/p", 64 * kMiB), Rules("b/p", 64 * kMiB)}, 0);
  const NamespaceId a = Open("a/p");
  const NamespaceId b = Open("b/p");
  const auto keys = Chain(1, 4);
  EXPECT_EQ(Store("a/p", a, keys), 4u);
  EXPECT_EQ(Matched(a, keys), 4u);
  EXPECT_EQ(Matched(b, keys), 0u) << "equal digest, equal keys, another tenant";
  EXPECT_NE(dram_->arena(engine_->DomainOf(engine_->FindTenant("a/p"))),
            dram_->arena(engine_->DomainOf(engine_->FindTenant("b/p"))));
}

TEST_F(StoreTest, TheDeathOfAGroupGivesBackWhatItFilledAndWaitedFor) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 2)), 2u);
  const uint64_t before = TierStatsOf("a/p", TierKind::kDram).charged_bytes;
  Reserve(kGroup, ns, Chain(100, 120));
  bool answered = false;
  memory_->Hold();
  engine_->Reserve({.group = kGroup, .ns = ns, .keys = Chain(300, 120)},
                   [&](std::vector<ReservedBlock>) { answered = true; });
  ASSERT_EQ(engine_->stats().waiting_requests, 1u);
  EXPECT_GE(engine_->AbortGroup(kGroup), 120u);
  EXPECT_EQ(engine_->stats().waiting_requests, 0u);
  memory_->Release();
  Pump();
  EXPECT_FALSE(answered) << "nobody is left to hear it";
  AdvanceMs(2000);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, before);
  EXPECT_EQ(Matched(ns, Chain(100, 120)), 0u);
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 2u);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, MemoryThatArrivesForNobodyGoesBackAtOnce) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  memory_->Hold();
  engine_->Reserve({.group = kGroup, .ns = ns, .keys = Chain(1, 1)}, [](std::vector<ReservedBlock>) {});
  engine_->AbortGroup(kGroup);
  memory_->Release();
  Pump();
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 0u);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, AnEngineThatEndsWhileMemoryArrivesLeavesNoChargeBehind) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  memory_->Hold();
  engine_->Reserve({.group = kGroup, .ns = ns, .keys = Chain(1, 1)}, [](std::vector<ReservedBlock>) {});
  engine_.reset();
  memory_->Release();
  Pump();  // under the address sanitizer: nothing touches the dead engine
}

TEST_F(StoreTest, ABlockLeasedTooOftenCutsALoadShort) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 1));
  std::vector<BlockPlace> places;
  size_t leased = 0;
  const std::vector<BlockKey> same(1024, KeyOf(1));
  uint32_t matched = 1024;
  while (matched == 1024) leased += matched = engine_->Lookup(ns, same, 0, 0, &places).matched;
  EXPECT_EQ(leased, kHoldsPerBlockMax);
  const EntryId entry = places.empty() ? EntryId(0) : places[0].entry;
  std::optional<CacheEngine::LoadResult> result;
  engine_->Load({.ns = ns, .entries = {entry, entry}},
                [&](CacheEngine::LoadResult answer) { result = std::move(answer); });
  Pump();
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->places.empty());
  EXPECT_EQ(result->reason, Refusal::kGroupLimit);
}

TEST_F(StoreTest, AParentThatGoesWhileItsChildWaitsIsNoParent) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const NamespaceId other_size = Open("a/p", 2, 1, 2 * kMiB);
  const auto parent = Reserve(kGroup, ns, Chain(1, 1));
  memory_->Hold();
  engine_->Reserve({.group = kGroup, .ns = other_size, .keys = Chain(50, 1)}, [](std::vector<ReservedBlock>) {});
  const BlockKey parent_key = KeyOf(1);
  const std::vector<BlockKey> child = Chain(2, 1);
  size_t granted = 0;
  engine_->Reserve({.group = kGroup, .ns = ns, .keys = child, .parent = &parent_key, .first_depth = 1},
                   [&](std::vector<ReservedBlock> blocks) { granted = blocks[0].outcome == ReserveOutcome::kGranted; });
  ASSERT_EQ(engine_->stats().waiting_requests, 2u) << "the child waits behind the other Reserve";
  ASSERT_TRUE(engine_->Abort(kGroup, parent[0].reservation));
  memory_->Release();
  Pump();
  EXPECT_EQ(granted, 1u);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, APolicyMadeAnewUnderTheSameNameInheritsNothing) {
  options_.removed_grace_ms = 1000;
  Start({Rules("a/p", 64 * kMiB)}, 0);
  Store("a/p", Open("a/p"), Chain(1, 4));
  rules_[0].uid = "another object";
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 4)), 0u);
  AdvanceMs(3000);
  EXPECT_EQ(engine_->stats().charged_bytes[TierIndex(TierKind::kDram)], 0u) << "what the old one had is erased";
  engine_->CheckInvariants();
}

TEST_F(StoreTest, OneTenantCannotTakeEveryPlaceInTheQueue) {
  Start({Rules("a/p", 64 * kMiB), Rules("b/p", 64 * kMiB)}, 0);
  const NamespaceId a = Open("a/p");
  const NamespaceId b = Open("b/p");
  memory_->Hold();
  size_t refused = 0, answered = 0;
  for (uint64_t i = 0; i < kWaitingPerTenantMax + 10; ++i) {
    engine_->Reserve({.group = kGroup, .ns = a, .keys = Chain(1 + i, 1)}, [&](std::vector<ReservedBlock> blocks) {
      ++answered;
      refused += blocks[0].reason == Refusal::kQueueFull;
    });
  }
  EXPECT_EQ(refused, 10u);
  bool other = false;
  engine_->Reserve({.group = GroupId(8), .ns = b, .keys = Chain(1, 1)},
                   [&](std::vector<ReservedBlock> blocks) { other = blocks[0].outcome == ReserveOutcome::kGranted; });
  memory_->Release();
  Pump();
  EXPECT_TRUE(other);
  EXPECT_EQ(answered, kWaitingPerTenantMax + 10);
}

TEST_F(StoreTest, LimitsHoldAndEveryRefusalHasItsReason) {
  Start({Rules("none/p", 0), Rules("tiny/p", 64 * kKiB), Rules("small/p", 4 * kMiB)}, 0);
  EXPECT_EQ(Reserve(kGroup, Open("none/p"), Chain(1, 1))[0].reason, Refusal::kNoTier);
  EXPECT_EQ(Reserve(kGroup, Open("tiny/p"), Chain(1, 1))[0].reason, Refusal::kTooSmall);
  const NamespaceId small = Open("small/p");
  const auto blocks = Reserve(kGroup, small, Chain(1, 20));
  EXPECT_EQ(std::count_if(blocks.begin(), blocks.end(), [](auto& b) { return b.outcome == ReserveOutcome::kGranted; }),
            16);
  EXPECT_EQ(blocks[16].reason, Refusal::kTenantLimit);
  EXPECT_EQ(TierStatsOf("small/p", TierKind::kDram).refusal(Refusal::kTenantLimit).count, 4u);
  EXPECT_LE(TierStatsOf("small/p", TierKind::kDram).peak_bytes, 4 * kMiB);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, TheNodeIsNeverFilledBeyondItsCapacity) {
  Start({Rules("a/p", kTestDramBytes), Rules("b/p", kTestDramBytes)}, 0);
  const NamespaceId a = Open("a/p");
  const NamespaceId b = Open("b/p");
  const size_t fits = kTestDramBytes / kTestBlockBytes;
  Reserve(kGroup, a, Chain(1, fits));
  const auto blocks = Reserve(GroupId(8), b, Chain(1, 1));
  EXPECT_EQ(blocks[0].reason, Refusal::kCapacity);
  EXPECT_LE(engine_->stats().charged_bytes[TierIndex(TierKind::kDram)], kTestDramBytes);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, DrainingRefusesStoresAndServesReads) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 2));
  bool drained = false;
  engine_->Drain([&](const absl::Status& synced) { drained = synced.ok(); });
  Pump();
  EXPECT_TRUE(drained);
  EXPECT_EQ(Reserve(kGroup, ns, Chain(10, 1))[0].reason, Refusal::kDraining);
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 2u);
}

TEST_F(StoreTest, ALayoutIsFixedForADigest) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  Open("a/p", 1);
  NamespaceDigest digest;
  digest.bytes.fill(1);
  const auto other = engine_->OpenNamespace(engine_->FindTenant("a/p"), digest, {16, 2, kTestBlockBytes});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
}

// It copies into its own mapping, and learns of the cut by its next call.
TEST_F(StoreTest, ASlotWhoseWriterWasCutOffIsNobodysForAsLongAsItMayWrite) {
  dram_bytes_ = 2 * kMiB;
  Start({Rules("a/p", 2 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const auto cut_off = Reserve(kGroup, ns, Chain(1, 8));
  ASSERT_EQ(cut_off[7].outcome, ReserveOutcome::kGranted);
  EXPECT_EQ(engine_->AbortGroup(kGroup, 0), 8u);
  EXPECT_EQ(Reserve(GroupId(9), ns, Chain(20, 1))[0].outcome, ReserveOutcome::kRefused);
  AdvanceMs(1500);
  EXPECT_EQ(Reserve(GroupId(9), ns, Chain(20, 1))[0].outcome, ReserveOutcome::kRefused);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 2 * kMiB);
  AdvanceMs(1000);
  EXPECT_EQ(Reserve(GroupId(9), ns, Chain(20, 8))[7].outcome, ReserveOutcome::kGranted);
  // One that left by itself is at nothing.
  EXPECT_EQ(engine_->AbortGroup(GroupId(9)), 8u);
  EXPECT_EQ(Reserve(GroupId(10), ns, Chain(40, 8))[7].outcome, ReserveOutcome::kGranted);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, ASlotRestsNoLongerThanAnybodyMayWriteToIt) {
  dram_bytes_ = 2 * kMiB;
  Start({Rules("a/p", 2 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1, 2, kMiB);
  const auto of_two = Reserve(kGroup, ns, Chain(1, 1), 0, nullptr, 0, 0);
  ASSERT_EQ(Reserve(kGroup, ns, Chain(1, 1), 0, nullptr, 0, 1)[0].outcome, ReserveOutcome::kGranted);
  EXPECT_TRUE(engine_->Abort(kGroup, of_two[0].reservation, 0));
  engine_->EndRest(of_two[0].reservation, 0b01);
  EXPECT_EQ(Reserve(kGroup, ns, Chain(2, 1))[0].outcome, ReserveOutcome::kRefused) << "the other may be at it";
  engine_->EndRest(of_two[0].reservation, 0b10);
  const auto next = Reserve(kGroup, ns, Chain(2, 1));
  ASSERT_EQ(next[0].outcome, ReserveOutcome::kGranted) << "and at once";
  AdvanceMs(2500);
  engine_->EndRest(of_two[0].reservation, kAllShards);
  engine_->EndRest(next[0].reservation, kAllShards);
  EXPECT_EQ(Reserve(kGroup, ns, Chain(3, 1))[0].outcome, ReserveOutcome::kRefused) << "it is being filled again";
  engine_->CheckInvariants();
}

TEST_F(StoreTest, OfABlockOfTwoShardsOneThatAbortsSaysNothingOfTheOther) {
  dram_bytes_ = 2 * kMiB;
  Start({Rules("a/p", 2 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1, 2, kMiB);
  const auto first = Reserve(kGroup, ns, Chain(1, 1), 0, nullptr, 0, 0);
  ASSERT_EQ(first[0].outcome, ReserveOutcome::kGranted);
  ASSERT_EQ(Reserve(kGroup, ns, Chain(1, 1), 0, nullptr, 0, 1)[0].outcome, ReserveOutcome::kGranted);
  EXPECT_TRUE(engine_->Abort(kGroup, first[0].reservation, 0b01));
  EXPECT_EQ(Reserve(kGroup, ns, Chain(2, 1))[0].outcome, ReserveOutcome::kRefused);
  AdvanceMs(2500);
  const auto second = Reserve(kGroup, ns, Chain(2, 1), 0, nullptr, 0, 0);
  ASSERT_EQ(second[0].outcome, ReserveOutcome::kGranted);
  // A shard that is committed is written no more.
  EXPECT_EQ(engine_->Commit(kGroup, second[0].reservation, 0), CommitOutcome::kShardStored);
  ASSERT_EQ(Reserve(kGroup, ns, Chain(2, 1), 0, nullptr, 0, 1)[0].outcome, ReserveOutcome::kGranted);
  EXPECT_TRUE(engine_->Abort(kGroup, second[0].reservation, 0b10));
  EXPECT_EQ(Reserve(kGroup, ns, Chain(3, 1))[0].outcome, ReserveOutcome::kGranted);
}

// One rank gave the block up before another stored its shard of it: nobody is ever served that, or evicts it.
TEST_F(StoreTest, ABlockThatARankNeverComesForHoldsItsSlotForTenSeconds) {
  dram_bytes_ = 4 * kMiB;
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1, 2, kMiB);
  const auto reserve = [&](uint64_t key, uint32_t shard) {
    return Reserve(kGroup, ns, Chain(key, 1), 0, nullptr, 0, shard)[0];
  };
  const ReservedBlock half = reserve(1, 1), late = reserve(2, 0);
  ASSERT_EQ(engine_->Commit(kGroup, half.reservation, 1), CommitOutcome::kShardStored);
  ASSERT_EQ(engine_->Commit(kGroup, late.reservation, 0), CommitOutcome::kShardStored);
  AdvanceMs((kFillTicksMax - 2) * kTickMs);
  EXPECT_EQ(reserve(3, 0).outcome, ReserveOutcome::kRefused);
  ASSERT_EQ(reserve(2, 1).outcome, ReserveOutcome::kGranted) << "somebody is at it now";
  AdvanceMs(3 * kTickMs);
  EXPECT_EQ(reserve(3, 0).outcome, ReserveOutcome::kGranted) << "and at once: nobody writes to it";
  EXPECT_EQ(fills_ended_, std::vector<ReservationId>{half.reservation}) << "which is told";
  EXPECT_EQ(engine_->Commit(kGroup, half.reservation, 0), CommitOutcome::kNotFilling);
  EXPECT_EQ(engine_->Commit(kGroup, late.reservation, 1), CommitOutcome::kVisible);
  engine_->CheckInvariants();
}

TEST_F(StoreTest, AGroupThatIsCutOffRestsOnlyWhatItMayWrite) {
  dram_bytes_ = 2 * kMiB;
  Start({Rules("a/p", 2 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1, 2, kMiB);
  const auto half = Reserve(kGroup, ns, Chain(1, 1), 0, nullptr, 0, 0);
  ASSERT_EQ(engine_->Commit(kGroup, half[0].reservation, 0), CommitOutcome::kShardStored);
  EXPECT_EQ(engine_->AbortGroup(kGroup, 0), 1u);
  EXPECT_EQ(Reserve(GroupId(9), ns, Chain(2, 1))[0].outcome, ReserveOutcome::kGranted);
}

}  // namespace
}  // namespace kvartal::engine
