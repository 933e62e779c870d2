// Loads from NVMe: one read for all who wait, reads ahead, and what becomes of a read when nobody waits any more.
#include <array>

#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using policy::Refusal;
using Answer = std::optional<CacheEngine::LoadResult>;

class LoadTest : public EngineTest {
 protected:
  static constexpr size_t kBlocks = 8;

  // A chain whose blocks are on the disk alone.
  void StartCold(uint64_t dram_bytes = 4 * kMiB) {
    Start({Rules("a/p", dram_bytes, 64 * kMiB)});
    ASSERT_EQ(Store("a/p", Open("a/p"), Chain(1, kBlocks)), kBlocks);
    Pump();
    Restart();
    ns_ = Open("a/p");
    // Memory is there already: how a Load waits for that is another test's.
    for (const ReservedBlock& block : Reserve(kGroup, ns_, Chain(500, kBlocks))) {
      ASSERT_TRUE(engine_->Abort(kGroup, block.reservation));
    }
    engine_->Lookup(ns_, Chain(1, kBlocks), 0, 0, &cold_);
    ASSERT_EQ(cold_.size(), kBlocks);
    ASSERT_EQ(cold_[0].tier, TierKind::kNvme);
    reads_before_ = file_->counts().reads;
  }
  // Not pumped. Its leases are the test's.
  void Load(LoadRequest request, Answer* answer) {
    request.ns = ns_;
    if (request.entries.empty()) request.entries = Entries();
    engine_->Load(std::move(request), [answer](CacheEngine::LoadResult result) {
      ASSERT_FALSE(answer->has_value()) << "answered twice";
      *answer = std::move(result);
    });
  }
  std::vector<EntryId> Entries() const {
    std::vector<EntryId> entries;
    for (const BlockPlace& place : cold_) entries.push_back(place.entry);
    return entries;
  }
  uint64_t Reads() const { return file_->counts().reads - reads_before_; }
  // Everything given back: nothing may be leaked by whatever ended early.
  void ExpectNothingIsHeld(const std::vector<const Answer*>& answers) {
    for (const Answer* answer : answers) {
      if (answer->has_value()) engine_->Release(Holds((*answer)->places));
    }
    engine_->Release(Holds(cold_));
    Pump();
    EXPECT_EQ(engine_->stats().leased_blocks, 0u);
    EXPECT_EQ(engine_->stats().loads_under_way, 0u);
    engine_->CheckInvariants();
  }

  NamespaceId ns_;
  std::vector<BlockPlace> cold_;
  uint64_t reads_before_ = 0;
};

TEST_F(LoadTest, ManySessionsThatWantTheSameBlocksCostOneReadABlock) {
  StartCold();
  file_->Hold();
  std::vector<Answer> answers(20);
  for (size_t i = 0; i < answers.size(); ++i) Load({.ns = ns_, .session = SessionId(i + 1)}, &answers[i]);
  EXPECT_EQ(file_->Pending(), kBlocks);
  file_->Release();
  Pump();
  EXPECT_EQ(Reads(), kBlocks);
  std::vector<const Answer*> all;
  for (const Answer& answer : answers) {
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->places.size(), kBlocks);
    all.push_back(&answer);
  }
  ExpectNothingIsHeld(all);
}

TEST_F(LoadTest, WhatOnlyAnEndedSessionWaitedForIsNotRead) {
  StartCold();
  file_->Hold();
  Answer ended, other;
  const std::vector<EntryId> entries = Entries();
  Load({.ns = ns_, .session = SessionId(1)}, &ended);
  Load({.ns = ns_, .entries = {entries[0], entries[1]}, .session = SessionId(2)}, &other);
  engine_->EndSession(SessionId(1));
  EXPECT_TRUE(ended.has_value()) << "whoever keeps count of the Loads of a session is told";
  EXPECT_EQ(file_->Pending(), 2u) << "what another session waits for is read all the same";
  file_->Release();
  Pump();
  EXPECT_EQ(Reads(), 2u);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->places.size(), 2u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).blocks, 2u);
  EXPECT_EQ(StatsOf("a/p").load_failures, 0u) << "the copy on the disk is as good as before";
  ExpectNothingIsHeld({&ended, &other});
  EXPECT_EQ(Matched(ns_, Chain(1, kBlocks)), kBlocks);
}

TEST_F(LoadTest, AtItsDeadlineALoadIsAnsweredWithTheFrontThatIsThere) {
  StartCold();
  const std::vector<EntryId> entries = Entries();
  Answer front, late;
  Load({.ns = ns_, .entries = {entries[0], entries[1], entries[2]}}, &front);
  Pump();
  file_->Hold();
  Load({.ns = ns_, .deadline_ms = 300}, &late);
  AdvanceMs(200);
  EXPECT_FALSE(late.has_value());
  AdvanceMs(100);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->places.size(), 3u);
  EXPECT_EQ(late->reason, Refusal::kLate);
  EXPECT_FALSE(late->read_failed) << "no block was lost";
  EXPECT_EQ(file_->Pending(), 0u) << "what the disk had not begun is not read any more";
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kDram).refusal(Refusal::kLate).count, 1u);
  file_->Release();
  Pump();
  ExpectNothingIsHeld({&front, &late});
}

TEST_F(LoadTest, ABufferTheDiskHasStaysItsOwnUntilItLetsGo) {
  StartCold(2 * kMiB);
  file_->FaultNext(testing::DiskFault::kNeverCompletes, static_cast<int>(kBlocks));
  Answer late;
  Load({.ns = ns_, .deadline_ms = 200}, &late);
  Pump();
  AdvanceMs(300);
  ASSERT_TRUE(late.has_value()) << "a disk that hangs does not hold whoever waits";
  EXPECT_TRUE(late->places.empty());
  EXPECT_EQ(engine_->stats().loads_under_way, kBlocks);
  // The tenant's memory is all the disk's now.
  std::optional<std::vector<ReservedBlock>> reserved;
  const std::vector<BlockKey> more = Chain(100, 1);
  engine_->Reserve({.group = kGroup, .ns = ns_, .keys = more, .deadline_ms = 200},
                   [&](std::vector<ReservedBlock> blocks) { reserved = std::move(blocks); });
  AdvanceMs(300);
  ASSERT_TRUE(reserved.has_value());
  EXPECT_NE((*reserved)[0].outcome, ReserveOutcome::kGranted) << "the disk may still write into that slot";
  file_->FailLost();
  Pump();
  EXPECT_EQ(engine_->stats().loads_under_way, 0u);
  EXPECT_EQ(Reserve(kGroup, ns_, more)[0].outcome, ReserveOutcome::kGranted);
  ExpectNothingIsHeld({&late});
}

TEST_F(LoadTest, AReserveThatWaitsForAHungDiskIsAnsweredAtItsDeadline) {
  Start({Rules("a/p", 2 * kMiB, 64 * kMiB)});
  const NamespaceId ns = Open("a/p");
  file_->Hold();
  ASSERT_EQ(Store("a/p", ns, Chain(1, 8)), 8u);
  std::optional<std::vector<ReservedBlock>> answer;
  const std::vector<BlockKey> more = Chain(100, 2);
  engine_->Reserve({.group = kGroup, .ns = ns, .keys = more, .deadline_ms = 300},
                   [&](std::vector<ReservedBlock> blocks) { answer = std::move(blocks); });
  AdvanceMs(200);
  EXPECT_FALSE(answer.has_value()) << "its blocks are being written, and then there is room";
  AdvanceMs(100);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ((*answer)[1].reason, Refusal::kLate);
  EXPECT_EQ(engine_->stats().waiting_requests, 0u);
  file_->Release();
  Pump();
  engine_->CheckInvariants();
}

TEST_F(LoadTest, WhatWasReadAheadIsThereWhenItIsAskedForAndReadOnce) {
  StartCold();
  Answer ahead, asked;
  Load({.ns = ns_, .session = SessionId(1), .ahead = true}, &ahead);
  Pump();
  ASSERT_TRUE(ahead.has_value());
  EXPECT_EQ(ahead->places.size(), kBlocks) << "leased until they are asked for";
  Load({.ns = ns_, .session = SessionId(1)}, &asked);
  ASSERT_TRUE(asked.has_value()) << "at once";
  EXPECT_EQ(asked->places.size(), kBlocks);
  EXPECT_EQ(Reads(), kBlocks);
  ExpectNothingIsHeld({&ahead, &asked});
}

TEST_F(LoadTest, WhatIsReadAheadIsHurriedOnceSomebodyWaitsForIt) {
  StartCold();
  file_->Hold();
  Answer ahead, asked;
  Load({.ns = ns_, .session = SessionId(1), .ahead = true}, &ahead);
  EXPECT_EQ(file_->recent().back().io_class, device::IoClass::kPromotion);
  EXPECT_EQ(file_->hastened(), 0u);
  Load({.ns = ns_, .session = SessionId(1)}, &asked);
  EXPECT_EQ(file_->hastened(), kBlocks);
  file_->Release();
  Pump();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->places.size(), kBlocks);
  EXPECT_EQ(Reads(), kBlocks);
  ExpectNothingIsHeld({&ahead, &asked});
}

TEST_F(LoadTest, ReadingAheadStopsWhereThereIsNoRoomAndNobodyIsRefusedOrKeptWaiting) {
  StartCold(1 * kMiB * 2);
  // All memory is leased.
  Answer first;
  Load({}, &first);
  Pump();
  ASSERT_EQ(first->places.size(), kBlocks);
  ASSERT_EQ(Store("a/p", ns_, Chain(100, 1)), 0u);
  Answer ahead;
  Load({.ns = ns_, .ahead = true}, &ahead);
  Pump();
  EXPECT_TRUE(ahead.has_value());
  EXPECT_EQ(engine_->stats().waiting_requests, 0u);
  ExpectNothingIsHeld({&first, &ahead});
}

TEST_F(LoadTest, ALoadThatNobodyHasRoomForIsCounted) {
  StartCold();
  const auto refused = [this] { return TierStatsOf("a/p", TierKind::kDram).refusal(Refusal::kQueueFull).count; };
  file_->SetQueueMax(1);
  Answer first, answer, ahead;
  Load({.ns = ns_, .entries = {cold_[0].entry}}, &first);
  Load({.ns = ns_, .entries = {cold_[1].entry}}, &answer);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->reason, Refusal::kQueueFull);
  EXPECT_EQ(refused(), 1u);
  Load({.ns = ns_, .entries = {cold_[2].entry}, .ahead = true}, &ahead);
  ASSERT_TRUE(ahead.has_value());
  EXPECT_EQ(refused(), 1u) << "nobody waited for that";
  Pump();
  ExpectNothingIsHeld({&first, &answer, &ahead});
}

// It finds no memory, waits for none, and comes again.
TEST_F(LoadTest, MemoryThatWasMadeForReadingAheadIsThereWhenItComesAgain) {
  Start({Rules("a/p", 4 * kMiB, 64 * kMiB)});
  ASSERT_EQ(Store("a/p", Open("a/p"), Chain(1, kBlocks)), kBlocks);
  Pump();
  Restart();
  ns_ = Open("a/p");
  engine_->Lookup(ns_, Chain(1, kBlocks), 0, 0, &cold_);
  ASSERT_EQ(cold_.size(), kBlocks);
  reads_before_ = file_->counts().reads;
  std::array<Answer, 2> answers;
  for (Answer& answer : answers) {
    Load({.ns = ns_, .ahead = true}, &answer);
    Pump();
    ASSERT_TRUE(answer.has_value());
  }
  EXPECT_GT(Reads(), 0u);
  ExpectNothingIsHeld({&answers[0], &answers[1]});
}

}  // namespace
}  // namespace kvartal::engine
