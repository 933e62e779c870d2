// A removal and what a restart does to it: its date stays its own, no block of the past is dated after it, and what
// could not be looked at is not certified.
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

constexpr size_t kPagesOfBlock = kTestBlockBytes / 4096;

class ResumedRemovalTest : public EngineTest {
 protected:
  void StartOne() {
    options_.removed_grace_ms = 5000;
    Start({Rules("a/p", 16 * kMiB, 32 * kMiB)});
  }
  void Drop() {
    engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  }
};

// The date of a removal that could not put its tombstone is that of its beginning, however late it is begun again: what
// the owner has stored since is no part of it.
TEST_F(ResumedRemovalTest, BegunOnceMoreItTakesNothingThatCameAfterIt) {
  StartOne();
  Store("a/p", Open("a/p"), Chain(1, 6));
  Pump();
  file_->Hold();
  Drop();
  AdvanceMs(300);
  recovers_at_once_ = false;
  Restart();
  catalog_->FailWrites(absl::UnavailableError("slow disk"));
  Pump();
  AdvanceMs(300);
  ASSERT_EQ(PagesOnDisk(KeyOf(1)), 0u) << "all is erased but for the tombstone";
  catalog_->FailWrites(absl::OkStatus());
  Store("a/p", Open("a/p"), Chain(20, 3));
  AdvanceMs(6000);  // longer than the grace after which it is begun again
  ASSERT_EQ(engine_->stats().tenants.size(), 1u) << "it has come to its end";
  recovers_at_once_ = true;
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(20, 3)), 3u);
  EXPECT_EQ(LookupAndLoad("a/p", Open("a/p"), Chain(20, 3)).wrong, 0u);
}

TEST_F(ResumedRemovalTest, AHeaderThatCannotBeReadIsNotCertified) {
  StartOne();
  const NamespaceId ns = Open("a/p");
  Store("a/p", ns, Chain(1, 4));
  Pump();
  catalog_->FailWrites(absl::UnavailableError("slow disk"));
  Store("a/p", ns, Chain(30, 2));
  Pump();
  catalog_->FailWrites(absl::OkStatus());
  file_->Hold();
  Drop();
  Pump();
  ASSERT_EQ(catalog_disk_->records.size(), 4u) << "none of the last two: only their headers tell of them";
  recovers_at_once_ = false;
  Restart();
  file_->FaultNext(testing::DiskFault::kIoError);  // of the search for such headers: a whole segment goes unseen
  Pump();
  AdvanceMs(500);
  ASSERT_EQ(PagesOnDisk(KeyOf(30)), kPagesOfBlock) << "nobody knows of it";
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_EQ(receipts_[0].blocks, 4u);
  EXPECT_GT(receipts_[0].unerased_blocks, 0u);
}

// As many tenants as there may be owe something already.
TEST_F(ResumedRemovalTest, WhatNobodyCanEraseNowIsServedToNobody) {
  StartOne();
  Store("a/p", Open("a/p"), Chain(1, 6));
  Pump();
  const tier::OwnerUidHash owner = catalog_disk_->records.begin()->second.identity.owner;
  constexpr uint64_t kOthers = 2 * kTenantsMax;
  for (uint64_t id = 1; id <= kOthers + 1; ++id) {
    tier::ErasureRecord& erasure = catalog_disk_->erasures[id];
    erasure = {.id = id, .kind = tier::ErasureRecord::Kind::kRemoval, .tenant = "gone", .before_wall_ms = 1};
    std::memcpy(erasure.owner.data(), &id, sizeof(id));
  }
  // Begun, and cut short before its tombstone was there.
  catalog_disk_->erasures[kOthers + 1].owner = owner;
  catalog_disk_->erasures[kOthers + 1].before_wall_ms = clock_.WallMs() + 1000;
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  EXPECT_TRUE(catalog_disk_->erasures.contains(kOthers + 1)) << "it is still owed";
}

// Of two disks that were never there together each has its own.
TEST_F(ResumedRemovalTest, OfTwoCountsOfWhatAnOwnerHasLeftOnTheDeviceTheLargerIsToldAndOneKept) {
  StartOne();
  Store("a/p", Open("a/p"), Chain(1, 2));
  Pump();
  const tier::OwnerUidHash owner = catalog_disk_->records.begin()->second.identity.owner;
  const std::map<uint64_t, uint64_t> counts = {{5, 2}, {6, 7}, {8, 3}};
  for (const auto& [id, blocks] : counts) {
    catalog_disk_->erasures[id] = {.id = id,
                                   .kind = tier::ErasureRecord::Kind::kUnzeroed,
                                   .owner = owner,
                                   .tenant = "a/p",
                                   .unzeroed_blocks = blocks};
  }
  Restart();
  ASSERT_EQ(catalog_disk_->erasures.size(), 1u);
  EXPECT_TRUE(catalog_disk_->erasures.contains(6));
  Drop();
  Pump();
  AdvanceMs(500);
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_.back().unerased_blocks, 7u);
}

// Else their records would outlive the removal when its deletions are lost.
TEST_F(ResumedRemovalTest, BlocksAreDatedBeforeItThoughTheClockWasSetBackOverARestart) {
  StartOne();
  AdvanceMs(10'000);
  Store("a/p", Open("a/p"), Chain(1, 6));
  Pump();
  clock_.SetWallBy(-30'000);
  Restart();
  ASSERT_EQ(Matched(Open("a/p"), Chain(1, 6)), 6u);
  file_->Hold();
  Drop();
  Pump();
  ASSERT_EQ(catalog_disk_->tombstones.size(), 1u);
  catalog_->Hold();
  file_->Release();
  AdvanceMs(300);
  ASSERT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  ASSERT_EQ(catalog_disk_->records.size(), 6u) << "of what is zeros already";
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
  AdvanceMs(500);
  EXPECT_TRUE(catalog_disk_->records.empty());
}

// Nor is the date of a block in the headers, all that is left when the catalog is lost, believed when it is to come.
TEST_F(ResumedRemovalTest, BlocksFoundByTheirHeadersAreDatedBeforeItToo) {
  StartOne();
  AdvanceMs(10'000);
  Store("a/p", Open("a/p"), Chain(1, 6));
  Pump();
  clock_.SetWallBy(-30'000);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  Restart();
  ASSERT_EQ(Matched(Open("a/p"), Chain(1, 6)), 6u);
  file_->Hold();
  Drop();
  Pump();
  catalog_->Hold();
  file_->Release();
  AdvanceMs(300);
  ASSERT_EQ(catalog_disk_->records.size(), 6u);
  Restart();
  EXPECT_EQ(Matched(Open("a/p"), Chain(1, 6)), 0u);
}

}  // namespace
}  // namespace kvartal::engine
