// Room on NVMe where block sizes mix: a segment has one slot size, and neither a guarantee nor free bytes may be lost
// to that. Blocks move with their bytes and their records, and leave nothing behind.
#include <algorithm>
#include <random>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;
using policy::Refusal;

constexpr uint32_t kOtherBytes = 640 * kKiB;
constexpr uint64_t kSlot = kTestBlockBytes + kNvmeHeaderBytes;
constexpr uint64_t kOtherSlot = kOtherBytes + kNvmeHeaderBytes;

class CompactionTest : public EngineTest {
 protected:
  // Room in DRAM for everything, so that only NVMe is short. The disk has four segments but for 1 MiB.
  void StartTwo(uint64_t a_guarantee, uint64_t b_guarantee) {
    nvme_capacity_bytes_ = 64 * kMiB - kNvmeDataStartBytes - 4 * kNvmeHeaderBytes;
    auto a = Rules("a/p", 128 * kMiB, nvme_capacity_bytes_), b = Rules("b/p", 128 * kMiB, nvme_capacity_bytes_);
    a.tier(TierKind::kNvme).guarantee_bytes = a_guarantee;
    b.tier(TierKind::kNvme).guarantee_bytes = b_guarantee;
    Start({a, b}, 64 * kMiB);
    a_ = Open("a/p");
    b_ = Open("b/p", 1, 1, kOtherBytes);
  }

  // One block a chain, so that each is a leaf. Returns how many became visible.
  void StoreEach(const std::string& tenant, NamespaceId ns, uint64_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(Store(tenant, ns, Chain(first + i, 1)), 1u);
    Pump();
  }
  TenantTierStats Nvme(const std::string& tenant) const { return TierStatsOf(tenant, TierKind::kNvme); }

  // Keeps every `nth` of a's blocks, wherever they lie.
  void Thin(uint64_t count, uint64_t nth) {
    rules_[0].tier(TierKind::kNvme).limit_bytes = (count / nth) * kSlot;
    rules_[0].tier(TierKind::kNvme).guarantee_bytes =
        std::min(rules_[0].tier(TierKind::kNvme).guarantee_bytes, rules_[0].tier(TierKind::kNvme).limit_bytes);
    for (uint64_t i = 0; i < count; i += nth) ASSERT_EQ(Matched(a_, Chain(1 + i, 1)), 1u);
    engine_->ApplyPolicy(Table());
    AdvanceMs(500);
    ASSERT_EQ(Nvme("a/p").blocks, count / nth);
  }

  NamespaceId a_, b_;
};

TEST_F(CompactionTest, AGuaranteeIsKeptThoughAnotherSizeIsInEverySegment) {
  StartTwo(0, 32 * kMiB);
  StoreEach("a/p", a_, 1, nvme_capacity_bytes_ / kSlot);
  const uint64_t all = Nvme("a/p").blocks;
  ASSERT_GT(all, 220u) << "a borrows all there is";
  StoreEach("b/p", b_, 5000, 32 * kMiB / kOtherSlot - 2);
  AdvanceMs(10'000);
  EXPECT_EQ(Nvme("b/p").blocks, 32 * kMiB / kOtherSlot - 2);
  EXPECT_EQ(StatsOf("b/p").durable_blocks, Nvme("b/p").blocks) << "told of each";
  EXPECT_EQ(durable_.size(), all + Nvme("b/p").blocks);
  EXPECT_EQ(Nvme("b/p").refusal(Refusal::kCapacity).count, 0u);
  EXPECT_GT(Nvme("a/p").drop(DropReason::kTakenByOther).count, 0u);
  EXPECT_GE(Nvme("a/p").charged_bytes, nvme_capacity_bytes_ - 32 * kMiB - 18 * kMiB) << "a segment more at the most";
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, WhatIsGuaranteedToBothMovesAndNobodyLosesABlock) {
  StartTwo(32 * kMiB, 24 * kMiB);
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);  // 72 blocks of a, 18 MiB, spread over all segments
  const auto dropped = Nvme("a/p").drop(DropReason::kTakenByOther).count;
  StoreEach("b/p", b_, 5000, 36);
  AdvanceMs(10'000);
  EXPECT_EQ(Nvme("b/p").blocks, 36u);
  EXPECT_EQ(Nvme("a/p").drop(DropReason::kTakenByOther).count, dropped);
  EXPECT_EQ(Nvme("a/p").blocks, 72u);
  engine_->CheckInvariants();
  Restart();
  a_ = Open("a/p");
  EXPECT_EQ(Nvme("a/p").blocks, 72u) << "the records moved along";
  for (uint64_t i = 0; i < 216; i += 3) {
    const Loaded loaded = LookupAndLoad("a/p", a_, Chain(1 + i, 1));
    ASSERT_EQ(loaded.count, 1u) << i;
    ASSERT_EQ(loaded.wrong, 0u) << i;
  }
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, WhatMovesWearsTheDiskTwice) {
  constexpr uint64_t kRate = 1'000'000'000;  // whole bytes a millisecond
  options_.nvme_write_bytes_per_second = kRate;
  StartTwo(32 * kMiB, 24 * kMiB);
  AdvanceMs(1000);  // there is plenty
  const uint64_t saved = engine_->stats().write_budget_saved_bytes, on_disk = WornBytes();
  const int64_t start_ns = clock_.MonotonicNs();
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  StoreEach("b/p", b_, 5000, 36);
  AdvanceMs(10'000);
  const uint64_t stored = 216 * kSlot + 36 * kOtherSlot, worn = WornBytes() - on_disk;
  ASSERT_GT(worn, stored + 20 * kSlot) << "some had to move, and left zeros behind";
  const uint64_t earned = static_cast<uint64_t>(clock_.MonotonicNs() - start_ns) / 1'000'000 * kRate / 1000;
  EXPECT_EQ(saved + earned - engine_->stats().write_budget_saved_bytes, worn);
}

// Nobody will read them, and a segment that holds them must not stand in the way of everybody else for that.
TEST_F(CompactionTest, BlocksWhoseKeyIsGoneDoNotKeepASegmentFromBecomingEmpty) {
  ring_ = std::make_shared<cipher::KeyRing>();
  const auto set_key = [this](uint32_t id) {
    const std::string text = std::to_string(id) + " " + std::string(64, 'a') + "\n";
    ring_->Set(*cipher::NodeKeys::Parse(std::as_bytes(std::span(text))));
  };
  set_key(1);
  StartTwo(32 * kMiB, 24 * kMiB);
  rules_[0].encrypt_nvme = true;
  engine_->ApplyPolicy(Table());
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  Restart();  // in memory no more, so that nothing is written again
  a_ = Open("a/p");
  b_ = Open("b/p", 1, 1, kOtherBytes);
  const std::string none;
  ring_->Set(*cipher::NodeKeys::Parse(std::as_bytes(std::span(none))));
  StoreEach("b/p", b_, 5000, 36);
  AdvanceMs(10'000);
  EXPECT_EQ(Nvme("b/p").blocks, 36u);
  EXPECT_GT(Nvme("a/p").drop(DropReason::kKeyMissing).count, 0u);
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, NoBytesStayBehindWhereABlockWas) {
  StartTwo(32 * kMiB, 24 * kMiB);
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  // What was evicted lies on the disk until it is overwritten: only what moved is looked at.
  std::vector<size_t> pages;
  for (uint64_t i = 0; i < 216; i += 3) pages.push_back(PagesOnDisk(KeyOf(1 + i)));
  StoreEach("b/p", b_, 5084, 36);  // with other first bytes
  AdvanceMs(10'000);
  ASSERT_EQ(Nvme("b/p").blocks, 36u);
  for (uint64_t i = 0; i < 216; i += 3) EXPECT_LE(PagesOnDisk(KeyOf(1 + i)), pages[i / 3]) << i;
}

TEST_F(CompactionTest, ACrashWhileBlocksMoveLosesNone) {
  StartTwo(32 * kMiB, 24 * kMiB);
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  const auto keys = Chain(5000, 1);
  const auto blocks = Reserve(kGroup, b_, keys);
  ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  for (int steps = 0; steps < 9; ++steps) executor_->RunOne();
  Restart();
  a_ = Open("a/p");
  EXPECT_EQ(Nvme("a/p").blocks, 72u);
  for (uint64_t i = 0; i < 216; i += 3) ASSERT_EQ(LookupAndLoad("a/p", a_, Chain(1 + i, 1)).wrong, 0u) << i;
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, WhoStoresAndReadsMeanwhileLosesNothing) {
  StartTwo(32 * kMiB, 24 * kMiB);
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  rules_[0].tier(TierKind::kNvme).limit_bytes = rules_[0].tier(TierKind::kNvme).guarantee_bytes = 32 * kMiB;
  Restart();  // what is read comes from NVMe, out of the places that are left
  a_ = Open("a/p");
  b_ = Open("b/p", 1, 1, kOtherBytes);
  const auto store = [&](const std::string& tenant, NamespaceId ns, uint64_t number) {
    engine_->Reserve({.group = kGroup, .ns = ns, .keys = Chain(number, 1)},
                     [=, this](std::vector<ReservedBlock> blocks) {
                       ASSERT_EQ(blocks[0].outcome, ReserveOutcome::kGranted);
                       std::memset(Data(tenant, blocks[0].arena_offset), KeyOf(number).bytes[0], kTestBlockBytes);
                       ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
                     });
  };
  size_t loaded = 0, steps_moving = 0;
  const auto load = [&](uint64_t number) {
    std::vector<BlockPlace> places;
    engine_->Lookup(a_, Chain(number, 1), 0, 0, &places);
    ASSERT_EQ(places.size(), 1u) << number;
    engine_->Load({.ns = a_, .entries = {places[0].entry}}, [&, number](CacheEngine::LoadResult result) {
      ASSERT_EQ(result.places.size(), 1u) << number;
      EXPECT_EQ(*Data("a/p", result.places[0].arena_offset), std::byte{KeyOf(number).bytes[0]});
      engine_->Release(Holds(result.places));
      ++loaded;
    });
    engine_->Release(Holds(places));
  };
  for (uint64_t i = 0; i < 36; ++i) {
    store("b/p", b_, 5000 + i);
    store("a/p", a_, 8000 + i);
    load(1 + i * 3);
    for (int step = 0; step < 7; ++step) {
      executor_->RunOne();
      steps_moving += engine_->stats().reclaiming_bytes[TierIndex(TierKind::kNvme)] > 0;
    }
    if (i % 8 == 7) {
      clock_.AdvanceMs(kTickMs);
      engine_->Tick();
    }
  }
  EXPECT_GT(steps_moving, 20u) << "blocks moved all the while";
  AdvanceMs(10'000);
  EXPECT_EQ(loaded, 36u);
  EXPECT_EQ(Nvme("b/p").blocks, 36u);
  EXPECT_EQ(Nvme("a/p").blocks, 72u + 36u);
  engine_->CheckInvariants();
  Restart();
  a_ = Open("a/p");
  for (uint64_t i = 0; i < 216; i += 3) ASSERT_EQ(LookupAndLoad("a/p", a_, Chain(1 + i, 1)).wrong, 0u) << i;
  for (uint64_t i = 0; i < 36; ++i) {
    const Loaded stored = LookupAndLoad("a/p", a_, Chain(8000 + i, 1));
    ASSERT_EQ(stored.count, 1u) << i;
    ASSERT_EQ(stored.wrong, 0u) << i;
  }
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, APlaceThatNothingWasWrittenToIsFreeAtOnce) {
  StartTwo(32 * kMiB, 24 * kMiB);
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  const auto blocks = Reserve(kGroup, b_, Chain(5000, 1));
  file_->Hold();
  file_->SetQueueMax(1);
  const uint64_t flushes = catalog_->counts().flushes;
  ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  AdvanceMs(500);
  EXPECT_EQ(catalog_->counts().flushes, flushes) << "for nothing that was to be zeroed";
  EXPECT_EQ(engine_->stats().reclaiming_bytes[TierIndex(TierKind::kNvme)], kSlot)
      << "of the one copy that is under way";
  file_->SetQueueMax(0);
  file_->Release();
  AdvanceMs(10'000);
  EXPECT_EQ(Nvme("b/p").blocks, 1u);
  EXPECT_EQ(Nvme("a/p").blocks, 72u);
  EXPECT_EQ(engine_->stats().reclaiming_bytes[TierIndex(TierKind::kNvme)], 0u);
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, ADiskThatFailsWedgesNobody) {
  StartTwo(32 * kMiB, 24 * kMiB);
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  file_->SetFaultRates({.io_error = 60}, 3);
  for (int i = 0; i < 20; ++i) Store("b/p", b_, Chain(5000 + i, 1));
  AdvanceMs(40'000);
  file_->SetFaultRates({}, 3);
  AdvanceMs(kDeviceErrorWindowMs + 15'000);
  StoreEach("b/p", b_, 6000, 8);
  AdvanceMs(5'000);
  EXPECT_EQ(StatsOf("b/p").tiers[TierIndex(TierKind::kNvme)].refusal(Refusal::kCapacity).count, 0u);
  EXPECT_GE(Nvme("b/p").blocks, 8u);
  EXPECT_EQ(engine_->stats().writes_under_way, 0u);
  EXPECT_EQ(engine_->stats().reclaiming_bytes[TierIndex(TierKind::kNvme)], 0u);
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, ATenantThatIsErasedMeanwhileLeavesNothing) {
  StartTwo(32 * kMiB, 24 * kMiB);
  StoreEach("a/p", a_, 1, 216);
  Thin(216, 3);
  const auto keys = Chain(5000, 1);
  const auto blocks = Reserve(kGroup, b_, keys);
  ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  for (int steps = 0; steps < 5; ++steps) executor_->RunOne();
  absl::StatusOr<uint64_t> dropped = absl::UnknownError("pending");
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  AdvanceMs(2'000);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(Nvme("a/p").charged_bytes, 0u);
  EXPECT_EQ(engine_->stats().reclaiming_bytes[TierIndex(TierKind::kNvme)], 0u);
  engine_->CheckInvariants();
}

TEST_F(CompactionTest, ABlockThatNoSegmentHoldsCostsNobodyHis) {
  StartTwo(0, 32 * kMiB);
  StoreEach("a/p", a_, 1, nvme_capacity_bytes_ / kSlot);
  const uint64_t blocks = Nvme("a/p").blocks;
  const NamespaceId huge = Open("b/p", 9, 1, 20 * kMiB);
  EXPECT_EQ(Store("b/p", huge, Chain(1, 1)), 1u);
  AdvanceMs(2'000);
  EXPECT_EQ(Nvme("a/p").blocks, blocks);
  EXPECT_EQ(Nvme("b/p").refusal(Refusal::kCapacity).count, 1u);
}

// Whoever reads or holds what it borrowed keeps it from nobody for longer than a lease.
TEST_F(CompactionTest, LeasesOfWhatIsBorrowedDoNotHoldAGuaranteeOnNvme) {
  StartTwo(0, 32 * kMiB);
  StoreEach("a/p", a_, 1, nvme_capacity_bytes_ / kSlot);
  std::vector<Hold> holds;
  for (uint64_t i = 0; i < nvme_capacity_bytes_ / kSlot; ++i) {
    std::vector<BlockPlace> places;
    engine_->Lookup(a_, Chain(1 + i, 1), 0, 0, &places);
    for (const BlockPlace& place : places) holds.push_back(HoldOf(place));
  }
  StoreEach("b/p", b_, 5000, 20);
  AdvanceMs(5'000);
  EXPECT_EQ(Nvme("b/p").blocks, 20u) << "they are read in DRAM: NVMe is free to go";
  engine_->Release(holds);
  engine_->CheckInvariants();
}

}  // namespace
}  // namespace kvartal::engine
