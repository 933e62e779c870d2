// Tenants whose blocks are encrypted on NVMe and who are erased: what is forgotten then, and what is not.
#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "tests/unit/engine/encryption_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;

TEST_F(EncryptionTest, ADropForgetsTheSaltAndWhatComesLaterHasAnother) {
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  const tier::OwnerSalt before = SaltOnDisk();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant(kRed), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  Pump();
  ASSERT_TRUE(dropped.has_value() && dropped->ok());
  EXPECT_NE(SaltOnDisk().salt, before.salt);
  AdvanceMs(500);
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 2)), 2u);
  Pump();
  Restart();
  const Loaded loaded = LookupAndLoad(kRed, OpenNs(), Chain(1, 2));
  EXPECT_EQ(loaded.count, 2u);
  EXPECT_EQ(loaded.wrong, 0u);
}

TEST_F(EncryptionTest, ADropErasesWhatIsBeingReadMeanwhile) {
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  std::vector<uint32_t> slots;
  for (const auto& [slot, header] : catalog_disk_->records) slots.push_back(slot);
  ASSERT_EQ(slots.size(), 2u);
  const NamespaceId ns = OpenNs();
  std::vector<BlockPlace> places;
  ASSERT_EQ(engine_->Lookup(ns, Chain(1, 2), 0, 0, &places).matched, 2u);
  file_->Hold();
  std::vector<EntryId> entries;
  for (const BlockPlace& place : places) entries.push_back(place.entry);
  bool answered = false;
  engine_->Load({.ns = ns, .entries = entries}, [&](const CacheEngine::LoadResult&) { answered = true; });
  Pump();
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant(kRed), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  Pump();
  file_->Release();
  Pump();
  EXPECT_TRUE(answered);
  engine_->Release(Holds(places));
  AdvanceMs(3000);
  ASSERT_TRUE(dropped.has_value() && dropped->ok());
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_.back().blocks, 2u);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kUnreadable).count, 0u);
  for (const uint32_t slot : slots) {
    const auto bytes = file_->bytes().subspan(slot * kSlotAlignBytes, kNvmeHeaderBytes + kTestBlockBytes);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) << slot;
  }
  engine_->CheckInvariants();
}

TEST_F(EncryptionTest, ARemovalThatIsResumedForgetsNoSaltThatCameLater) {
  keeps_receipts_ = false;
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  engine_->DropTenant(engine_->FindTenant(kRed), [](const absl::StatusOr<uint64_t>&) {});
  Pump();
  AdvanceMs(500);
  const std::vector<BlockKey> later = Chain(50, 2);
  ASSERT_EQ(Store(kRed, OpenNs(), later), 2u);
  Pump();
  const tier::OwnerSalt salt = SaltOnDisk();
  ASSERT_FALSE(catalog_disk_->erasures.empty());
  untold_.clear();
  Restart();
  AdvanceMs(500);
  EXPECT_EQ(SaltOnDisk().salt, salt.salt);
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), later).count, 2u);
  untold_.clear();
}

TEST_F(EncryptionTest, ARemovalThatWasCutShortForgetsTheSaltInTheNextLife) {
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  const tier::OwnerSalt before = SaltOnDisk();
  engine_->DropTenant(engine_->FindTenant(kRed), [](const absl::StatusOr<uint64_t>&) {});
  executor_->RunOne();  // what the catalog is told first: that something is owed
  ASSERT_FALSE(catalog_disk_->erasures.empty());
  ASSERT_EQ(SaltOnDisk().salt, before.salt);
  Restart();
  AdvanceMs(500);
  EXPECT_NE(SaltOnDisk().salt, before.salt);
  EXPECT_EQ(Matched(OpenNs(), Chain(1, 2)), 0u);
}

TEST_F(EncryptionTest, WhatWasEvictedBeforeADropIsBeyondReachEvenByItsHeader) {
  Start({Encrypted(kRed, 4 * (kTestBlockBytes + kNvmeHeaderBytes))});
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 8)), 8u);
  Pump();
  AdvanceMs(500);
  engine_->DropTenant(engine_->FindTenant(kRed), [](const absl::StatusOr<uint64_t>&) {});
  Pump();
  const std::map<tier::OwnerUidHash, tier::OwnerSalt> salts = catalog_disk_->salts;
  file_->CutPower();
  Shutdown();
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  catalog_disk_->salts = salts;  // they lie in a file of their own
  Boot();
  for (uint64_t number = 1; number <= 8; ++number)
    EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), {KeyOf(number)}).count, 0u) << number;
}

TEST_F(EncryptionTest, ASaltMadeInTheTickOfARemovalIsNotForgottenByItsResumption) {
  options_.removed_grace_ms = 5000;
  keeps_receipts_ = false;
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  rules_ = {};
  engine_->ApplyPolicy(Table());
  while (!catalog_disk_->salts.empty()) AdvanceMs(kTickMs);
  rules_ = {Encrypted(kRed)};
  engine_->ApplyPolicy(Table());
  AdvanceMs(500);
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(50, 2)), 2u);
  Pump();
  const tier::OwnerSalt salt = SaltOnDisk();
  ASSERT_FALSE(catalog_disk_->erasures.empty()) << "the removal is resumed by the next life";
  untold_.clear();
  Restart();
  AdvanceMs(500);
  EXPECT_EQ(SaltOnDisk().salt, salt.salt);
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(50, 2)).count, 2u);
  untold_.clear();
}

TEST_F(EncryptionTest, OfTwoDropsInOneTickEachForgetsTheSaltThereIs) {
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  std::set<cipher::Salt> salts{SaltOnDisk().salt};
  for (int drop = 0; drop < 3; ++drop) {
    engine_->DropTenant(engine_->FindTenant(kRed), [](const absl::StatusOr<uint64_t>&) {});
    Pump();
    salts.insert(SaltOnDisk().salt);
  }
  EXPECT_EQ(salts.size(), 4u);
}

TEST_F(EncryptionTest, APolicyThatCameBackWithinItsGraceHasWhatItHad) {
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  rules_ = {};
  engine_->ApplyPolicy(Table());
  AdvanceMs(1000);
  rules_ = {Encrypted(kRed)};
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
}

}  // namespace
}  // namespace kvartal::engine
