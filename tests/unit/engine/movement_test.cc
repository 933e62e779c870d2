// Between DRAM and NVMe: write-through, demotion, promotion through a window, faults, expiry, restart, deletion.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::Refusal;
using testing::DiskFault;

class MovementTest : public EngineTest {};

TEST_F(MovementTest, CommittedAndDurableAreToldApart) {
  Start({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  catalog_->Hold();
  ASSERT_EQ(Store("a/p", ns, Chain(1, 3)), 3u);
  Pump();
  EXPECT_EQ(Matched(ns, Chain(1, 3)), 3u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 3u) << "the data is written";
  EXPECT_TRUE(durable_.empty()) << "the metadata is not";
  catalog_->Release();
  Pump();
  EXPECT_EQ(durable_.size(), 3u);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 3u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, EvictedBlocksComeBackFromNvmeWithTheirBytes) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 16)), 16u);
  Pump();
  ASSERT_EQ(Store("a/p", ns, Chain(100, 16)), 16u);
  Pump();
  std::vector<TierKind> tiers;
  EXPECT_EQ(Matched(ns, Chain(1, 16), &tiers), 16u);
  EXPECT_EQ(tiers[0], TierKind::kNvme);
  const Loaded loaded = LookupAndLoad("a/p", ns, Chain(1, 16));
  EXPECT_EQ(loaded.count, 16u);
  EXPECT_EQ(loaded.wrong, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 32u) << "the NVMe copy stays";
  EXPECT_LE(TierStatsOf("a/p", TierKind::kDram).peak_bytes, 4 * kMiB);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, AChainLongerThanTheTenantMayHoldComesThroughAWindow) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  for (uint64_t first = 0; first < 48; first += 16) {
    const BlockKey parent = KeyOf(first);
    const auto blocks =
        Reserve(kGroup, ns, Chain(first + 1, 16), 0, first > 0 ? &parent : nullptr, static_cast<uint32_t>(first));
    for (size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_EQ(blocks[i].outcome, ReserveOutcome::kGranted);
      std::memset(Data("a/p", blocks[i].arena_offset), KeyOf(first + 1 + i).bytes[0], kTestBlockBytes);
      engine_->Commit(kGroup, blocks[i].reservation, 0);
    }
    Pump();
  }
  std::vector<BlockPlace> places;
  ASSERT_EQ(engine_->Lookup(ns, Chain(1, 48), 0, 0, &places).matched, 48u);
  const std::vector<Hold> held = Holds(places);
  EXPECT_FALSE(held.back().in_place) << "the tail is in DRAM and may leave it for the head";
  size_t at = 0, windows = 0;
  while (at < places.size()) {
    std::vector<EntryId> rest;
    for (size_t i = at; i < places.size(); ++i) rest.push_back(places[i].entry);
    size_t got = 0;
    std::vector<Hold> loaded_places;
    engine_->Load({.ns = ns, .entries = rest}, [&](CacheEngine::LoadResult result) {
      got = result.places.size();
      loaded_places = Holds(result.places);
      for (size_t i = 0; i < got; ++i) {
        EXPECT_EQ(*Data("a/p", result.places[i].arena_offset), std::byte{KeyOf(1 + at + i).bytes[0]});
      }
    });
    Pump();
    ASSERT_GT(got, 0u);
    engine_->Release(loaded_places);
    engine_->Release(std::span(held).subspan(at, got));
    at += got;
    ++windows;
  }
  EXPECT_GE(windows, 3u);
  EXPECT_LE(TierStatsOf("a/p", TierKind::kDram).peak_bytes, 4 * kMiB);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, ABlockOnlyInDramIsDemotedBeforeItsSpaceIsTaken) {
  Start({Rules("a/p", 4 * kMiB, 0)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 16)), 16u);
  Pump();
  rules_[0].tier(TierKind::kNvme).limit_bytes = 64 * kMiB;  // from now on: what is there was not written through
  engine_->ApplyPolicy(Table());
  ASSERT_EQ(Store("a/p", ns, Chain(100, 8)), 8u);
  Pump();
  EXPECT_GT(StatsOf("a/p").demotions, 0u);
  const Loaded loaded = LookupAndLoad("a/p", ns, Chain(1, 16));
  EXPECT_EQ(loaded.count, 16u) << "nothing was lost";
  EXPECT_EQ(loaded.wrong, 0u);
}

TEST_F(MovementTest, AtTheNvmeLimitTheOldestGoesAndTheLimitHolds) {
  Start({Rules("a/p", 4 * kMiB, 4 * kMiB)});
  const NamespaceId ns = Open("a/p");
  for (uint64_t first = 0; first < 400; first += 16) {
    Store("a/p", ns, Chain(1000 + first, 16));
    Pump();
  }
  const TenantTierStats stats = TierStatsOf("a/p", TierKind::kNvme);
  EXPECT_LE(stats.peak_bytes, 4 * kMiB);
  EXPECT_GT(stats.evictions(), 0u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, ALimitOfZeroOnNvmeMeansNothingIsWrittenThere) {
  Start({Rules("a/p", 4 * kMiB, 0)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 32));
  Pump();
  EXPECT_EQ(nvme_->counters().blocks_written, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 0u);
}

TEST_F(MovementTest, ABadReadIsAMissAndNeverWrongBytes) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 4));
  Pump();
  Store("a/p", ns, Chain(100, 16));
  Pump();
  for (const DiskFault fault : {DiskFault::kBitFlip, DiskFault::kIoError, DiskFault::kShortTransfer}) {
    Store("a/p", ns, Chain(1, 4));
    Pump();
    Store("a/p", ns, Chain(200 + static_cast<int>(fault) * 100, 16));
    Pump();
    file_->FaultNext(fault);
    const Loaded loaded = LookupAndLoad("a/p", ns, Chain(1, 4));
    EXPECT_LT(loaded.count, 4u);
    EXPECT_TRUE(loaded.lost);
    EXPECT_EQ(loaded.wrong, 0u);
    engine_->CheckInvariants();
  }
  EXPECT_EQ(StatsOf("a/p").load_failures, 3u);
}

TEST_F(MovementTest, ABlockThatIsStoredAnewIsNotLoadedBeforeItsCommit) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  ASSERT_EQ(Store("a/p", ns, Chain(1, 16)), 16u);
  Pump();
  ASSERT_EQ(Store("a/p", ns, Chain(100, 16)), 16u);
  Pump();
  std::vector<BlockPlace> held;
  engine_->Lookup(ns, Chain(1, 1), 0, 0, &held);
  ASSERT_EQ(held.size(), 1u);
  ASSERT_EQ(held[0].tier, TierKind::kNvme);
  const auto load = [&] {
    std::optional<CacheEngine::LoadResult> answer;
    engine_->Load({.ns = ns, .entries = {held[0].entry}},
                  [&](CacheEngine::LoadResult result) { answer = std::move(result); });
    Pump();
    return answer.value();
  };
  file_->FaultNext(DiskFault::kBitFlip);
  EXPECT_TRUE(load().read_failed);
  const auto blocks = Reserve(kGroup, ns, Chain(1, 1));
  ASSERT_EQ(blocks[0].outcome, ReserveOutcome::kGranted);
  const CacheEngine::LoadResult unfinished = load();
  EXPECT_TRUE(unfinished.places.empty()) << "its bytes are not there yet";
  EXPECT_TRUE(unfinished.read_failed);
  ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  const CacheEngine::LoadResult whole = load();
  EXPECT_EQ(whole.places.size(), 1u);
  engine_->Release(Holds(whole.places));
  engine_->Release(Holds(held));
  engine_->CheckInvariants();
}

TEST_F(MovementTest, AFailedWriteRefundsAndKeepsTheBlockInDram) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  file_->FaultNext(DiskFault::kIoError, 2);
  Store("a/p", ns, Chain(1, 2));
  Pump();
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 2u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, TwoLoadsOfOneBlockShareOneRead) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 1));
  Pump();
  Store("a/p", ns, Chain(100, 16));
  Pump();
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 1), 0, 0, &places);
  const uint64_t reads = file_->counts().reads;
  int answers = 0;
  for (int i = 0; i < 2; ++i)
    engine_->Load({.ns = ns, .entries = {places[0].entry}},
                  [&](CacheEngine::LoadResult result) { answers += result.places.size(); });
  Pump();
  EXPECT_EQ(answers, 2);
  EXPECT_EQ(file_->counts().reads, reads + 1);
}

TEST_F(MovementTest, IdleBlocksExpireTierByTier) {
  auto rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.ttl_ms[TierIndex(TierKind::kDram)] = 2000;
  rules.ttl_ms[TierIndex(TierKind::kNvme)] = 5000;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 8));
  Pump();
  AdvanceMs(1800);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 8u);
  AdvanceMs(300);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).blocks, 8u);
  AdvanceMs(3000);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 0u);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(Matched(ns, Chain(1, 8)), 0u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, APinHidesNothingBehindIt) {
  auto rules = Rules("a/p", 64 * kMiB);
  rules.tier(TierKind::kDram).guarantee_bytes = 8 * kMiB;
  rules.ttl_ms[TierIndex(TierKind::kDram)] = 2000;
  Start({rules}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 2));
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 2), 0, 0, &places);
  ASSERT_EQ(engine_->Pin(Holds(places), clock_.WallMs() + 60'000), Refusal::kNone);
  engine_->Release(Holds(places));
  Store("a/p", ns, Chain(100, 8));
  AdvanceMs(2500);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 2u) << "the unpinned ones expired";
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 2u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, NothingLivesLongerThanMaxAgeUsedOrPinnedOrNot) {
  auto rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.max_age_ms = 3000;
  rules.tier(TierKind::kDram).guarantee_bytes = 8 * kMiB;
  Start({rules});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 6));
  Pump();
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 3), 0, 0, &places);
  ASSERT_EQ(engine_->Pin(Holds(places), clock_.WallMs() + 3'000), Refusal::kNone);
  engine_->Release(Holds(places));
  for (int i = 0; i < 29; ++i) {
    AdvanceMs(100);
    EXPECT_EQ(Matched(ns, Chain(1, 6)), 6u);
  }
  AdvanceMs(200);
  EXPECT_EQ(Matched(ns, Chain(1, 6)), 0u);
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 0u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, ADropThatCouldNotBeRecordedSaysSo) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 3));
  Pump();
  catalog_->FailWrites(absl::ResourceExhaustedError("disk full"));
  std::optional<absl::StatusOr<uint64_t>> answer;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { answer = std::move(bytes); });
  Pump();
  AdvanceMs(200);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MovementTest, RecordsTheCatalogFailedToWriteAreWrittenLater) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  catalog_->FailWrites(absl::ResourceExhaustedError("disk full"));
  Store("a/p", Open("a/p"), Chain(1, 3));
  Pump();
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 0u);
  catalog_->FailWrites(absl::OkStatus());
  AdvanceMs(300);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 3u);
}

TEST_F(MovementTest, ExpiredBlocksAreNotServedEvenBeforeTheTick) {
  auto rules = Rules("a/p", 64 * kMiB);
  rules.ttl_ms[TierIndex(TierKind::kDram)] = 1000;
  Start({rules}, 0);
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 2));
  clock_.AdvanceMs(1000);
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 0u);
  EXPECT_EQ(Store("a/p", ns, Chain(1, 2)), 2u) << "stored anew instead of revived";
  EXPECT_EQ(Matched(ns, Chain(1, 2)), 2u);
}

TEST_F(MovementTest, DurableBlocksSurviveKillAndAreChargedAgain) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB), Rules("b/p", 16 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 20));
  Store("b/p", Open("b/p"), Chain(1, 7));
  Pump();
  const uint64_t charged = TierStatsOf("a/p", TierKind::kNvme).charged_bytes;
  Restart();
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, charged);
  EXPECT_EQ(StatsOf("b/p").durable_blocks, 7u);
  const NamespaceId ns = Open("a/p");
  const Loaded loaded = LookupAndLoad("a/p", ns, Chain(1, 20));
  EXPECT_EQ(loaded.count, 20u);
  EXPECT_EQ(loaded.wrong, 0u);
  EXPECT_EQ(Matched(Open("b/p"), Chain(1, 20)), 7u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, RecoveredBlocksAreEvictedOldestFirst) {
  Start({Rules("a/p", 16 * kMiB, 4 * kMiB)});
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 7));
  Pump();
  AdvanceMs(1000);
  Store("a/p", ns, Chain(100, 8));
  Pump();
  Restart();
  Store("a/p", Open("a/p"), Chain(200, 3));
  Pump();
  EXPECT_EQ(Matched(Open("a/p"), Chain(100, 8)), 8u);
  EXPECT_LT(Matched(Open("a/p"), Chain(1, 7)), 7u) << "the older chain made room";
  engine_->CheckInvariants();
}

TEST_F(MovementTest, WithoutACatalogTheHeadersBringTheBlocksBack) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 20));
  Pump();
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  Restart();
  const Loaded loaded = LookupAndLoad("a/p", Open("a/p"), Chain(1, 20));
  EXPECT_EQ(loaded.count, 20u);
  EXPECT_EQ(loaded.wrong, 0u);
  EXPECT_EQ(catalog_disk_->records.size(), 20u) << "the catalog is whole again";
  engine_->CheckInvariants();
}

TEST_F(MovementTest, ABlockThatNamesNoParentOrItselfIsRecoveredWithoutAKnot) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  const std::vector<BlockKey> zero_key(1);
  const auto blocks = Reserve(kGroup, ns, zero_key, 0, nullptr, /*depth=*/5);
  ASSERT_EQ(engine_->Commit(kGroup, blocks[0].reservation, 0), CommitOutcome::kVisible);
  const BlockKey unknown = KeyOf(99);
  const auto orphan = Reserve(kGroup, ns, Chain(7, 1), 0, &unknown, 3);
  ASSERT_EQ(engine_->Commit(kGroup, orphan[0].reservation, 0), CommitOutcome::kVisible);
  Pump();
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), zero_key), 1u);
  EXPECT_EQ(Matched(Open("a/p"), Chain(7, 1)), 1u);
  EXPECT_EQ(StatsOf("a/p").entries, 2u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, WhatTheCatalogHadNoRoomForIsOfferedAgain) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  catalog_->SetQueueMax(2);
  Store("a/p", Open("a/p"), Chain(1, 12));
  file_->Hold();
  file_->Release();
  Pump();
  AdvanceMs(2000);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 12u);
  EXPECT_EQ(durable_.size(), 12u);
}

TEST_F(MovementTest, WhatExpiredWhileTheDaemonWasDownStaysGone) {
  auto rules = Rules("a/p", 16 * kMiB, 64 * kMiB);
  rules.ttl_ms[TierIndex(TierKind::kNvme)] = 60'000;
  Start({rules});
  Store("a/p", Open("a/p"), Chain(1, 5));
  Pump();
  clock_.AdvanceMs(61'000);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 5)), 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 0u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, RecoveryNeverExceedsALimitThatWasLoweredMeanwhile) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 20));
  Pump();
  rules_[0].tier(TierKind::kNvme).limit_bytes = 1 * kMiB;
  Restart();
  EXPECT_LE(TierStatsOf("a/p", TierKind::kNvme).charged_bytes, 1 * kMiB);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, ADroppedTenantIsGoneForGoodAndItsBytesAreZero) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB), Rules("b/p", 16 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 20));
  Store("b/p", Open("b/p"), Chain(50, 5));
  Pump();
  std::optional<uint64_t> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { dropped = bytes.value(); });
  Pump();
  AdvanceMs(200);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(*dropped, 2 * 20 * uint64_t{kTestBlockBytes});
  EXPECT_EQ(StatsOf("a/p").entries, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).charged_bytes, 0u);
  const std::byte fill{KeyOf(3).bytes[0]};
  const std::string needle(4096, static_cast<char>(fill));
  const std::string_view disk(reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size());
  EXPECT_EQ(disk.find(needle), std::string_view::npos) << "payload left on disk";
  catalog_disk_->records.clear();  // even without a catalog nothing comes back
  catalog_disk_->complete = false;
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 20)), 0u);
  EXPECT_EQ(Matched(Open("b/p"), Chain(50, 5)), 5u);
  engine_->CheckInvariants();
}

TEST_F(MovementTest, DrainWaitsForWritesAndTheCatalog) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  file_->Hold();
  Store("a/p", Open("a/p"), Chain(1, 4));
  bool drained = false;
  engine_->Drain([&](const absl::Status& synced) { drained = synced.ok(); });
  Pump();
  EXPECT_FALSE(drained);
  file_->Release();
  AdvanceMs(200);
  EXPECT_TRUE(drained);
  EXPECT_EQ(durable_.size(), 4u);
}

TEST_F(MovementTest, ADrainWhoseSyncFailsSaysSo) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  catalog_->FailWrites(absl::InternalError("no space left"));
  std::optional<absl::Status> synced;
  engine_->Drain([&](absl::Status status) { synced = std::move(status); });
  AdvanceMs(200);
  ASSERT_TRUE(synced.has_value());
  EXPECT_EQ(synced->message(), "no space left");
}

TEST_F(MovementTest, ADrainEndsWhileSomebodyLoads) {
  Start({Rules("a/p", 16 * kMiB, 64 * kMiB)});
  Store("a/p", Open("a/p"), Chain(1, 4));
  Pump();
  Restart();
  const NamespaceId ns = Open("a/p");
  file_->Hold();
  std::vector<BlockPlace> places;
  engine_->Lookup(ns, Chain(1, 4), 0, 0, &places);
  ASSERT_EQ(places.size(), 4u);
  std::vector<EntryId> entries;
  for (const BlockPlace& place : places) entries.push_back(place.entry);
  std::optional<CacheEngine::LoadResult> loaded;
  engine_->Load({.ns = ns, .entries = entries}, [&](CacheEngine::LoadResult result) { loaded = std::move(result); });
  Pump();
  ASSERT_EQ(engine_->stats().loads_under_way, 4u);
  bool drained = false;
  engine_->Drain([&](const absl::Status& synced) { drained = synced.ok(); });
  AdvanceMs(2 * kTickMs);
  EXPECT_TRUE(drained);
  EXPECT_FALSE(loaded.has_value()) << "the load went on all the while";
  file_->Release();
  Pump();
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->places.size(), 4u) << "and is served";
  engine_->Release(Holds(loaded->places));
  engine_->Release(Holds(places));
}

}  // namespace
}  // namespace kvartal::engine
