// Who goes first, what is never taken, and that the LRU column of a trace is met exactly.
#include <map>
#include <random>
#include <set>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::Refusal;

class EvictionTest : public EngineTest {};

TEST_F(EvictionTest, LeavesGoFirstSoAChainLosesItsTail) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 16)), 16u);
  ASSERT_EQ(Store("a/p", ns, Chain(100, 3)), 3u);
  EXPECT_EQ(Matched(ns, Chain(1, 16)), 13u);
  EXPECT_EQ(Matched(ns, Chain(100, 3)), 3u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).evictions(), 3u);
  engine_->CheckInvariants();
}

TEST_F(EvictionTest, LeasedBlocksAreNeverTaken) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 16));
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 16), 0, 0, &places);
  ASSERT_EQ(places.size(), 16u);
  EXPECT_EQ(Reserve(kGroup, ns, Chain(100, 1))[0].reason, Refusal::kTenantLimit);
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(*Data("a/p", places[i].arena_offset), std::byte{KeyOf(1 + i).bytes[0]});
  }
  engine_->Release(Holds(places));
  EXPECT_EQ(Store("a/p", ns, Chain(100, 1)), 1u);
}

// A client numbers its requests as it likes: all it has may be of the very one it asks for room for.
TEST_F(EvictionTest, WhatARequestSparesIsLookedThroughOnlySoOftenATick) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p", 1, 1, 4 * kKiB);
  constexpr uint32_t kSpared = 512, kOthers = 512;
  for (uint32_t i = 0; i < kSpared + kOthers; ++i) {
    const auto block = Reserve(kGroup, ns, {KeyOf(1 + i)}, i < kSpared ? 1 : 0);
    ASSERT_EQ(engine_->Commit(kGroup, block[0].reservation, 0), CommitOutcome::kVisible);
  }
  std::vector<BlockKey> wanted;
  for (uint32_t i = 0; i < kOthers; ++i) wanted.push_back(KeyOf(10'000 + i));
  const auto count_granted = [&] {
    const auto blocks = Reserve(kGroup, ns, wanted, 1);
    return std::count_if(blocks.begin(), blocks.end(),
                         [](const ReservedBlock& block) { return block.outcome == ReserveOutcome::kGranted; });
  };
  const auto granted = count_granted();
  EXPECT_GE(granted, kSparedPerTickMax / kSpared);
  EXPECT_LT(granted, 2 * kSparedPerTickMax / kSpared);
  wanted.erase(wanted.begin(), wanted.begin() + granted);
  EXPECT_EQ(count_granted(), 0);
  AdvanceMs(kTickMs);
  EXPECT_GT(count_granted(), 0) << "the next tick goes on";
  engine_->CheckInvariants();
}

TEST_F(EvictionTest, AGenerationTellsAReaderThatItsSlotWasTakenAway) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 16));
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 16), 0, 0, &places);
  engine_->Release(Holds(places));
  Store("a/p", ns, Chain(100, 16));
  const device::Arena& arena = *dram_->arena(engine_->DomainOf(engine_->FindTenant("a/p")));
  for (const BlockPlace& place : places) {
    EXPECT_NE(arena.generations()[place.arena_offset / kSlotAlignBytes].load(), place.generation);
  }
}

TEST_F(EvictionTest, ARequestNeverEvictsWhatItTouchedItself) {
  Start({Rules("a/p", 4 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 8));
  std::vector<BlockPlace> places;
  const LookupResult hit = engine_->Lookup(ns, Chain(1, 40), 0, 0, &places);
  ASSERT_EQ(hit.matched, 8u);
  engine_->Release(Holds(places));
  const BlockKey parent = KeyOf(8);
  const auto blocks = Reserve(kGroup, ns, Chain(9, 32), hit.request, &parent, 8);
  EXPECT_EQ(std::count_if(blocks.begin(), blocks.end(), [](auto& b) { return b.outcome == ReserveOutcome::kGranted; }),
            8);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 8u);
}

TEST_F(EvictionTest, OnAFullDiskARequestNeverEvictsWhatItHasJustStored) {
  constexpr uint64_t kOnDisk = 8;
  Start({Rules("a/p", 64 * kMiB, kOnDisk * (kTestBlockBytes + kNvmeHeaderBytes))});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 4 * kOnDisk), 7), 4 * kOnDisk);
  AdvanceMs(2000);  // what was put off is tried again
  const TenantTierStats nvme = TierStatsOf("a/p", TierKind::kNvme);
  EXPECT_EQ(nvme.blocks, kOnDisk);
  EXPECT_EQ(nvme.evictions(), 0u);
  EXPECT_GT(nvme.refusal(Refusal::kTenantLimit).count, 0u) << "told, not made room for";
  EXPECT_EQ(Matched(ns, Chain(1, 4 * kOnDisk)), 4 * kOnDisk);
}

TEST_F(EvictionTest, TheEntryCapCountsBlocks) {
  auto rules = Rules("a/p", 64 * kMiB);
  rules.max_entries = 5;
  Start({rules}, 0);
  const NamespaceId ns = Open("a/p");
  EXPECT_EQ(Store("a/p", ns, Chain(1, 9)), 5u) << "the rest of one request does not push out its own front";
  EXPECT_EQ(Store("a/p", ns, Chain(100, 2)), 2u);
  EXPECT_EQ(StatsOf("a/p").entries, 5u);
  EXPECT_EQ(Matched(ns, Chain(1, 9)), 3u);
  engine_->CheckInvariants();
}

TEST_F(EvictionTest, PinsHoldAndEnd) {
  auto rules = Rules("a/p", 4 * kMiB);
  rules.tier(TierKind::kDram).guarantee_bytes = 1 * kMiB;
  Start({rules}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 5));
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 5), 0, 0, &places);
  std::vector<Hold> holds = Holds(places);
  EXPECT_EQ(engine_->Pin(holds, clock_.WallMs() + 5000), Refusal::kTenantLimit)
      << "five blocks do not fit the guarantee";
  holds.pop_back();
  EXPECT_EQ(engine_->Pin(holds, clock_.WallMs() + 5000), Refusal::kNone);
  engine_->Release(Holds(places));
  Store("a/p", ns, Chain(100, 16));
  EXPECT_EQ(Matched(ns, Chain(1, 5)), 4u);
  AdvanceMs(6000);
  Store("a/p", ns, Chain(200, 16));
  EXPECT_EQ(Matched(ns, Chain(1, 5)), 0u);
  engine_->CheckInvariants();
}

TEST_F(EvictionTest, ALoweredLimitDrainsWithoutBreakingALease) {
  Start({Rules("a/p", 16 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 64));
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 64), 0, 0, &places);
  rules_[0].tier(TierKind::kDram).limit_bytes = 4 * kMiB;
  engine_->ApplyPolicy(Table());
  AdvanceMs(500);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 64u);
  EXPECT_EQ(Reserve(kGroup, ns, Chain(100, 1))[0].reason, Refusal::kTenantLimit);
  engine_->Release(Holds(places));
  AdvanceMs(500);
  EXPECT_LE(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 4 * kMiB);
  engine_->CheckInvariants();
}

TEST_F(EvictionTest, AnEmptyExtentGoesBackToTheNode) {
  Start({Rules("a/p", 64 * kMiB)}, 0);
  const NamespaceId ns = Open("a/p");
  const auto blocks = Reserve(kGroup, ns, Chain(1, 200));
  for (const ReservedBlock& block : blocks) engine_->Abort(kGroup, block.reservation);
  EXPECT_GT(TierStatsOf("a/p", TierKind::kDram).granted_empty_bytes, 0u);
  AdvanceMs(2000);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 0u);
  EXPECT_EQ(engine_->stats().reclaiming_bytes[TierIndex(TierKind::kDram)], 0u);
}

TEST_F(EvictionTest, BlocksOfAnotherSizeMakeRoomByWholeExtents) {
  Start({Rules("a/p", 8 * kMiB)}, 0);
  const NamespaceId small = Open("a/p", 1);
  const NamespaceId large = Open("a/p", 2, 1, 2 * kMiB);
  ASSERT_EQ(Store("a/p", small, Chain(1, 32)), 32u);
  const auto blocks = Reserve(kGroup, large, Chain(500, 2));
  EXPECT_EQ(blocks[0].outcome, ReserveOutcome::kGranted);
  EXPECT_LE(TierStatsOf("a/p", TierKind::kDram).peak_bytes, 8 * kMiB);
  engine_->CheckInvariants();
}

// Two slot sizes: eight small blocks lie in an extent that would hold one large one.
class TwoSizesTest : public EvictionTest {
 protected:
  static constexpr size_t kExtents = 4, kInExtent = kExtentAlignBytes / kTestBlockBytes;
  static constexpr size_t kSmallBlocks = kExtents * kInExtent;

  // Fills the tenant's memory with small blocks and uses them in an order that has nothing to do with where they lie.
  void StartFull() {
    auto rules = Rules("a/p", kExtents * kExtentAlignBytes);
    rules.tier(TierKind::kDram).guarantee_bytes = kExtents * kTestBlockBytes;
    Start({rules}, 0);
    small_ = Open("a/p", 1);
    large_ = Open("a/p", 2, 1, kExtentAlignBytes);
    for (size_t i = 0; i < kSmallBlocks; ++i) ASSERT_EQ(Store("a/p", small_, Chain(1 + i, 1)), 1u);
    for (size_t i = 0; i < kSmallBlocks; ++i) oldest_first_.push_back(1 + i * 11 % kSmallBlocks);
    for (const uint64_t number : oldest_first_) ASSERT_EQ(Matched(small_, Chain(number, 1)), 1u);
    std::map<uint64_t, uint64_t> one_of_each;
    for (const uint64_t number : oldest_first_) {
      std::vector<BlockPlace> places;
      engine_->Lookup(small_, Chain(number, 1), 0, 0, &places);
      one_of_each.try_emplace(places[0].arena_offset / kExtentAlignBytes, number);
      engine_->Release(Holds(places));
    }
    for (const auto& [extent, number] : one_of_each) one_of_each_.push_back(number);
    ASSERT_EQ(one_of_each_.size(), kExtents);
  }
  size_t Left() {
    size_t left = 0;
    for (size_t i = 0; i < kSmallBlocks; ++i) left += Matched(small_, Chain(1 + i, 1));
    return left;
  }

  NamespaceId small_, large_;
  std::vector<uint64_t> oldest_first_;
  std::vector<uint64_t> one_of_each_;  // extent
};

TEST_F(TwoSizesTest, OneLargeBlockCostsAsManySmallOnesAsAnExtentHolds) {
  StartFull();
  ASSERT_EQ(Reserve(kGroup, large_, Chain(500, 1))[0].outcome, ReserveOutcome::kGranted);
  for (size_t i = 0; i < kSmallBlocks; ++i) {
    EXPECT_EQ(Matched(small_, Chain(oldest_first_[i], 1)), i < kInExtent ? 0u : 1u) << "number " << i << " by age";
  }
  engine_->CheckInvariants();
}

TEST_F(TwoSizesTest, WhatIsPinnedInEveryExtentHoldsNoneOfThem) {
  StartFull();
  for (const uint64_t number : one_of_each_) ASSERT_EQ(Pin(small_, Chain(number, 1), 5000), Refusal::kNone);
  EXPECT_EQ(Reserve(kGroup, large_, Chain(500, 1))[0].outcome, ReserveOutcome::kGranted);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).evictions(), kInExtent);
  for (const uint64_t number : one_of_each_) EXPECT_EQ(Matched(small_, Chain(number, 1)), 1u);
  engine_->CheckInvariants();
}

TEST_F(TwoSizesTest, NothingGoesForABlockThatReadersLeaveNoRoomFor) {
  StartFull();
  std::vector<Hold> holds;
  for (const uint64_t number : one_of_each_) {
    std::vector<BlockPlace> places;
    engine_->Lookup(small_, Chain(number, 1), 0, 0, &places);
    holds.push_back(HoldOf(places[0]));
  }
  EXPECT_EQ(Reserve(kGroup, large_, Chain(500, 1))[0].reason, Refusal::kTenantLimit);
  EXPECT_EQ(Left(), kSmallBlocks);
  EXPECT_TRUE(engine_->MayRenew(holds));
  engine_->Release(holds);
  AdvanceMs(kTickMs);
  EXPECT_EQ(Reserve(kGroup, large_, Chain(500, 1))[0].outcome, ReserveOutcome::kGranted);
  EXPECT_EQ(Left(), kSmallBlocks - kInExtent);
}

TEST_F(TwoSizesTest, WhoseExtentsAreAllReadMakesRoomFromWhatHasTheSize) {
  StartFull();
  ASSERT_EQ(Store("a/p", large_, Chain(500, 1)), 1u);
  std::vector<Hold> holds;
  for (size_t i = 0; i < kSmallBlocks; i += 2) {
    std::vector<BlockPlace> places;
    engine_->Lookup(small_, Chain(1 + i, 1), 0, 0, &places);
    for (const BlockPlace& place : places) holds.push_back(HoldOf(place));
  }
  const size_t left = Left();
  ASSERT_EQ(Store("a/p", large_, Chain(600, 1)), 1u);
  EXPECT_EQ(Matched(large_, Chain(500, 1)), 0u);
  EXPECT_EQ(Left(), left);
  engine_->Release(holds);
}

TEST_F(EvictionTest, HoweverManyBlocksHaveAnotherSizeThatWithTheRightOneGoes) {
  constexpr uint32_t kTiny = kSlotAlignBytes;
  constexpr size_t kTinyInExtent = kExtentAlignBytes / kTiny, kTinyBlocks = 10 * kTinyInExtent;
  static_assert(kTinyBlocks > kVictimProbesMax);
  Start({Rules("a/p", 11 * kExtentAlignBytes)}, 0);
  const NamespaceId tiny = Open("a/p", 1, 1, kTiny), large = Open("a/p", 2, 1, kExtentAlignBytes);
  for (size_t i = 0; i < kTinyBlocks; ++i) {
    const auto blocks = Reserve(kGroup, tiny, Chain(1 + i, 1));
    ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  }
  ASSERT_EQ(Store("a/p", large, Chain(100'000, 1)), 1u);
  // Of every extent one is read.
  std::vector<Hold> holds;
  for (size_t i = 0; i < kTinyBlocks; i += kTinyInExtent / 4) {
    std::vector<BlockPlace> places;
    engine_->Lookup(tiny, Chain(1 + i, 1), 0, 0, &places);
    for (const BlockPlace& place : places) holds.push_back(HoldOf(place));
  }
  EXPECT_EQ(Store("a/p", large, Chain(200'000, 1)), 1u);
  EXPECT_EQ(Matched(large, Chain(100'000, 1)), 0u);
  EXPECT_EQ(StatsOf("a/p").entries, kTinyBlocks + 1);
  engine_->Release(holds);
}

// The rule of LRU, tail first, written down naively: blocks ordered by the last request that touched them and, within
// it, the deepest first; a request touches its first `capacity` blocks and never evicts them.
class NaiveLru {
 public:
  explicit NaiveLru(size_t capacity) : capacity_(capacity) {}
  size_t Request(const std::vector<uint64_t>& chain) {
    ++request_;
    size_t hit = 0;
    while (hit < chain.size() && blocks_.contains(chain[hit])) ++hit;
    const size_t touched = std::min(chain.size(), capacity_);
    for (size_t i = 0; i < touched; ++i) blocks_[chain[i]] = {request_, i};
    while (blocks_.size() > capacity_) {
      auto victim = blocks_.end();
      for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
        if (it->second.first == request_) continue;
        if (victim == blocks_.end() || it->second.first < victim->second.first ||
            (it->second.first == victim->second.first && it->second.second > victim->second.second)) {
          victim = it;
        }
      }
      blocks_.erase(victim);
    }
    return hit;
  }

 private:
  const size_t capacity_;
  uint64_t request_ = 0;
  std::map<uint64_t, std::pair<uint64_t, size_t>> blocks_;
};

TEST_F(EvictionTest, HitsOfARandomTreeEqualTheNaiveLru) {
  constexpr size_t kCapacity = 40;
  auto rules = Rules("a/p", 64 * kMiB);
  rules.max_entries = kCapacity;
  Start({rules}, 0);
  const NamespaceId ns = Open("a/p");
  NaiveLru naive(kCapacity);
  std::mt19937_64 random(20261129);
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> children;  // (block, branch) -> block
  uint64_t next_block = 1;
  for (int request = 0; request < 1500; ++request) {
    std::vector<uint64_t> chain;
    uint64_t block = 0;
    const size_t length = 1 + random() % (request % 50 == 0 ? 60 : 12);
    for (size_t i = 0; i < length; ++i) {
      uint64_t& child = children[{block, random() % 3}];
      if (child == 0) child = next_block++;
      chain.push_back(block = child);
    }
    std::vector<BlockKey> keys;
    for (const uint64_t id : chain) keys.push_back(KeyOf(id));
    std::vector<BlockPlace> places;
    const LookupResult found = engine_->Lookup(ns, keys, 0, 0, &places);
    ASSERT_EQ(found.matched, naive.Request(chain)) << "request " << request;
    const size_t stored_up_to = std::min(keys.size(), kCapacity);
    if (found.matched < stored_up_to) {
      const std::vector<BlockKey> rest(keys.begin() + found.matched, keys.begin() + stored_up_to);
      const auto blocks = Reserve(kGroup, ns, rest, found.request,
                                  found.matched > 0 ? &keys[found.matched - 1] : nullptr, found.matched);
      for (const ReservedBlock& reserved : blocks) {
        ASSERT_EQ(engine_->Commit(kGroup, reserved.reservation, 0), CommitOutcome::kVisible);
      }
    }
    engine_->Release(Holds(places));
  }
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
