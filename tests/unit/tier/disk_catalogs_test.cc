#include "daemon/tier/disk_catalogs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "daemon/base/units.h"
#include "tests/contract/catalog_calls.h"
#include "tests/support/fake_catalog.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr uint32_t kSlotsPerDisk = 100;

class DiskCatalogsTest : public ::testing::Test {
 protected:
  DiskCatalogsTest() : calls_(&executor_) {
    for (int i = 0; i < 3; ++i) disks_.push_back(std::make_shared<testing::CatalogDisk>());
    Open();
  }

  // Those disks, in that order.
  void Open(const std::vector<size_t>& which = {0, 1, 2}, uint32_t slots_per_disk = kSlotsPerDisk) {
    joined_.reset();
    executor_.RunAll();
    fakes_.clear();
    std::vector<std::unique_ptr<NvmeCatalog>> catalogs;
    for (const size_t disk : which) {
      auto catalog = std::make_unique<testing::FakeCatalog>(&executor_, disks_[disk]);
      fakes_.push_back(catalog.get());
      catalogs.push_back(std::move(catalog));
    }
    const std::vector<uint64_t> bytes(which.size(), uint64_t{slots_per_disk} * kSlotAlignBytes);
    joined_ = std::make_unique<DiskCatalogs>(std::move(catalogs), DiskMap(bytes));
  }
  static ErasureRecord Erasure(uint64_t id, uint8_t owner, uint64_t blocks, int64_t before_ms = 1000) {
    return {.id = id,
            .kind = ErasureRecord::Kind::kRemoval,
            .owner = OwnerOf(owner),
            .tenant = "t",
            .before_wall_ms = before_ms,
            .blocks = blocks};
  }

  testing::ManualExecutor executor_;
  std::vector<std::shared_ptr<testing::CatalogDisk>> disks_;
  std::vector<testing::FakeCatalog*> fakes_;
  std::unique_ptr<DiskCatalogs> joined_;
  CatalogCalls calls_;
};

TEST_F(DiskCatalogsTest, ARecordIsWithItsDiskUnderItsPlaceThereAndComesBackUnderTheTiers) {
  for (const uint32_t slot : {7u, 107u, 250u}) ASSERT_TRUE(calls_.Put(joined_.get(), RecordOf(slot, slot)).ok());
  EXPECT_EQ(NumberOf(disks_[0]->records.at(7)), 7u);
  EXPECT_EQ(NumberOf(disks_[1]->records.at(7)), 107u);
  EXPECT_EQ(NumberOf(disks_[2]->records.at(50)), 250u);
  joined_->Delete(SlotId(250));
  ASSERT_TRUE(joined_->Refresh(SlotId(107), {.last_access_ms = 5, .pinned_until_s = 6}, [](const absl::Status&) {}));
  executor_.RunAll();
  EXPECT_TRUE(disks_[2]->records.empty());
  EXPECT_EQ(disks_[1]->records.at(7).pinned_until_s, 6u);
  // In another order, as after somebody exchanged the lines of the configuration.
  Open({2, 1, 0});
  const auto records = calls_.Load(joined_.get());
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(NumberOf(records.at(107)), 107u);
  EXPECT_EQ(NumberOf(records.at(207)), 7u);
}

TEST_F(DiskCatalogsTest, WhatIsBeyondTheEndOfASmallerDiskIsNotTakenForABlockOfTheNext) {
  ASSERT_TRUE(calls_.Put(joined_.get(), RecordOf(60, 1)).ok());
  Open({0, 1, 2}, 50);
  EXPECT_TRUE(calls_.Load(joined_.get()).empty());
  executor_.RunAll();
  EXPECT_TRUE(disks_[0]->records.empty()) << "nor is it there the next time";
}

TEST_F(DiskCatalogsTest, ADiskThatWasAwayDuringADropBringsNothingBack) {
  ASSERT_TRUE(calls_.Put(joined_.get(), RecordOf(150, 1, 9, 500)).ok());
  ASSERT_TRUE(calls_.Put(joined_.get(), RecordOf(151, 2, 9, 2000)).ok());
  Open({0, 2});
  ASSERT_TRUE(calls_.Tombstone(joined_.get(), 9, 1000).ok());
  Open({1});
  EXPECT_TRUE(joined_->tombstones().empty()) << "alone it knows nothing of it, which is what is left to fear";
  Open();
  EXPECT_EQ(joined_->tombstones().at(OwnerOf(9)), 1000);
  const auto alive = calls_.Load(joined_.get());
  EXPECT_THAT(alive, SizeIs(1));
  EXPECT_TRUE(alive.contains(151));
  // From now on it knows by itself.
  Open({1});
  EXPECT_EQ(joined_->tombstones().at(OwnerOf(9)), 1000);
}

TEST_F(DiskCatalogsTest, ATombstoneIsTakenWhenEveryDiskHasIt) {
  fakes_[1]->FailWrites(absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(absl::IsResourceExhausted(calls_.Tombstone(joined_.get(), 9, 1000)));
  EXPECT_EQ(disks_[2]->tombstones.size(), 1u) << "the others have it all the same";
  fakes_[1]->FailWrites(absl::OkStatus());
  EXPECT_TRUE(calls_.Tombstone(joined_.get(), 9, 1000).ok());
}

TEST_F(DiskCatalogsTest, TheSaltOfAnOwnerOutlivesAnyDiskAndOneThatWasForgottenStaysSo) {
  const OwnerSalt kept{OwnerOf(1), cipher::NewSalt(), 100}, gone{OwnerOf(2), cipher::NewSalt(), 100};
  joined_->PutSalt(kept);
  joined_->PutSalt(gone);
  executor_.RunAll();
  // One is lost and replaced, and another one away while the second owner is dropped and comes back.
  disks_[0] = std::make_shared<testing::CatalogDisk>();
  Open({0, 2});
  EXPECT_THAT(joined_->salts(), ElementsAre(kept, gone));
  ASSERT_TRUE(calls_.Tombstone(joined_.get(), 2, 200).ok());
  Open({0, 1});
  EXPECT_THAT(joined_->salts(), ElementsAre(kept));
  executor_.RunAll();
  EXPECT_FALSE(disks_[1]->salts.contains(OwnerOf(2))) << "its blocks there are noise";
  EXPECT_EQ(disks_[0]->salts.at(OwnerOf(1)), kept);
}

TEST_F(DiskCatalogsTest, AnErasureGoesOnFromWhereItHadComeFurthest) {
  joined_->PutErasure(Erasure(4, 1, 10));
  executor_.RunAll();
  disks_[1]->erasures.at(4).blocks = 12;  // the process ended between the two
  Open();
  EXPECT_THAT(joined_->open_erasures(), ElementsAre(Erasure(4, 1, 12)));
  executor_.RunAll();
  EXPECT_EQ(disks_[0]->erasures.at(4).blocks, 12u);
  joined_->EndErasure(4);
  executor_.RunAll();
  for (const auto& disk : disks_) EXPECT_TRUE(disk->erasures.empty());
}

TEST_F(DiskCatalogsTest, AnErasureOfADiskThatWasAwayIsNotTakenForALaterOneOfTheSameNumber) {
  joined_->PutErasure(Erasure(1, 1, 10));
  executor_.RunAll();
  Open({0, 2});
  joined_->EndErasure(1);
  joined_->PutErasure(Erasure(1, 2, 3));
  executor_.RunAll();
  Open();
  EXPECT_THAT(joined_->open_erasures(), ElementsAre(Erasure(1, 2, 3), Erasure(2, 1, 10)));
  executor_.RunAll();
  for (const auto& disk : disks_) EXPECT_EQ(disk->erasures, disks_[0]->erasures);
  Open();
  EXPECT_THAT(joined_->open_erasures(), SizeIs(2)) << "each is there once";
}

TEST_F(DiskCatalogsTest, DatesGoOnFromTheLatestOfAnyDisk) {
  joined_->KeepTime(5000);
  executor_.RunAll();
  disks_[2]->kept_time_ms = 9000;
  Open();
  EXPECT_EQ(joined_->kept_time_ms(), 9000);
  executor_.RunAll();
  EXPECT_EQ(disks_[0]->kept_time_ms, 9000);
}

TEST_F(DiskCatalogsTest, OnlyTheDisksWithMissingRecordsAreNamedAndMarked) {
  EXPECT_EQ(joined_->incomplete(), SetOfDisk(0) | SetOfDisk(1) | SetOfDisk(2)) << "all are new";
  joined_->MarkComplete();
  executor_.RunAll();
  disks_[1] = std::make_shared<testing::CatalogDisk>();
  Open();
  EXPECT_EQ(joined_->incomplete(), SetOfDisk(1));
  joined_->MarkComplete();
  executor_.RunAll();
  Open();
  EXPECT_EQ(joined_->incomplete(), kNoDisk);
}

TEST_F(DiskCatalogsTest, ALoadThatFailsOnOneDiskBringsWhatTheOthersHave) {
  for (const uint32_t slot : {7u, 107u, 207u}) ASSERT_TRUE(calls_.Put(joined_.get(), RecordOf(slot, slot)).ok());
  Open();
  fakes_[0]->FailNextLoad(absl::DataLossError("cut"));
  size_t records = 0;
  absl::Status loaded;
  joined_->Load([&](const std::vector<CatalogRecord>& batch) { records += batch.size(); },
                [&](absl::Status status) { loaded = std::move(status); });
  executor_.RunAll();
  EXPECT_TRUE(absl::IsDataLoss(loaded)) << loaded;
  EXPECT_GE(records, 2u);
}

}  // namespace
}  // namespace kvartal::tier
