// Tenants whose blocks are encrypted on NVMe, in the engine: what is refused and lost, and what is not.
#include "tests/unit/engine/encryption_fixture.h"

namespace kvartal::engine {
namespace {

using policy::DropReason;
using policy::Refusal;

TEST_F(EncryptionTest, BlocksOfATenantThatWantsItAreOnNvmeAndNotInTheClear) {
  Start({Encrypted(kRed), Rules("blue/t", 32 * kMiB, 64 * kMiB)});
  const std::vector<BlockKey> keys = Chain(1, 4);
  ASSERT_EQ(Store(kRed, OpenNs(), keys), keys.size());
  ASSERT_EQ(Store("blue/t", Open("blue/t", 2, 1, kTestBlockBytes), Chain(100, 1)), 1u);
  Pump();
  EXPECT_EQ(durable_.size(), 5u);
  for (const BlockKey& key : keys) EXPECT_EQ(PagesOnDisk(key), 0u);
  EXPECT_GT(PagesOnDisk(KeyOf(100)), 0u) << "the control";
  EXPECT_TRUE(StatsOf(kRed).encrypts_nvme);
  EXPECT_FALSE(StatsOf("blue/t").encrypts_nvme);
  Restart();
  const Loaded loaded = LookupAndLoad(kRed, OpenNs(), keys);
  EXPECT_EQ(loaded.count, keys.size());
  EXPECT_EQ(loaded.wrong, 0u);
}

TEST_F(EncryptionTest, WithoutAKeyNothingIsWrittenAndTheRefusalIsCounted) {
  SetKeys("");
  Start({Encrypted(kRed)});
  const std::vector<BlockKey> keys = Chain(1, 3);
  ASSERT_EQ(Store(kRed, OpenNs(), keys), keys.size()) << "memory is not meant";
  Pump();
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).refusal(Refusal::kEncryptionKeyMissing).count, keys.size());
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).charged_bytes, 0u);
  EXPECT_EQ(Matched(OpenNs(), keys), keys.size());
  SetKeys(KeyLine(1, 'a'));
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(50, 1)), 1u);
  Pump();
  EXPECT_EQ(durable_.size(), 1u) << "a key that came is used";
  engine_->CheckInvariants();
}

TEST_F(EncryptionTest, APinnedBlockIsNotLostWithACopyThatIsServedNoMore) {
  policy::TenantRules rules = Rules(kRed, 32 * kMiB, 64 * kMiB);
  rules.tier(TierKind::kNvme).guarantee_bytes = 64 * kMiB;
  Start({rules});
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 1)), 1u);
  Pump();
  ASSERT_EQ(Pin(OpenNs(), Chain(1, 1), 3'600'000), Refusal::kNone);
  SetKeys("");
  rules_[0].encrypt_nvme = true;
  engine_->ApplyPolicy(Table());
  for (uint64_t i = 0; i < 200; ++i) Store(kRed, OpenNs(), Chain(1000 + i, 1));
  Pump();
  EXPECT_EQ(Matched(OpenNs(), Chain(1, 1)), 1u);
  engine_->CheckInvariants();
  // Written again once it can be, and its pin with it.
  SetKeys(KeyLine(1, 'a'));
  AdvanceMs(3000);
  Restart();
  EXPECT_EQ(Matched(OpenNs(), Chain(1, 1)), 1u);
  EXPECT_EQ(StatsOf(kRed).pinned_blocks, 1u);
}

TEST_F(EncryptionTest, AKeyThatGoesWhileAWriteWaitsIsARefusalAndNoChargeStays) {
  Start({Encrypted(kRed)});
  file_->Hold();
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 2)), 2u);
  SetKeys("");
  file_->Release();
  Pump();
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).refusal(Refusal::kEncryptionKeyMissing).count, 2u);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).charged_bytes, 0u);
  engine_->CheckInvariants();
}

TEST_F(EncryptionTest, ABlockWhoseKeyIsGoneIsAMissAndItsSlotIsFree) {
  Start({Encrypted(kRed)});
  const std::vector<BlockKey> keys = Chain(1, 3);
  StoreOnDisk(keys);
  SetKeys(KeyLine(2, 'b'));
  const Loaded loaded = LookupAndLoad(kRed, OpenNs(), keys);
  EXPECT_EQ(loaded.count, 0u);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kKeyMissing).count, keys.size());
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).charged_bytes, 0u);
  EXPECT_EQ(Matched(OpenNs(), keys), 0u);
  EXPECT_EQ(nvme_->device_state(), tier::DeviceState::kHealthy);
  EXPECT_EQ(Store(kRed, OpenNs(), keys), keys.size()) << "stored anew, under the new key";
  Pump();
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).blocks, keys.size());
  engine_->CheckInvariants();
}

TEST_F(EncryptionTest, RotationLosesNothingAsLongAsTheOldKeyIsThere) {
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 3));
  SetKeys(KeyLine(1, 'a') + KeyLine(2, 'b'));
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(50, 2)), 2u);
  Pump();
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 3)).count, 3u);
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(50, 2)).count, 2u);
  SetKeys(KeyLine(2, 'b'));
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(50, 2)).count, 2u);
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 3)).count, 0u);
}

// It is read when its salt is forgotten: what nobody can read any more is to be erased all the same.
// The receipt was not kept, so the next life goes on with a removal that has done all its work: the salt of what was
// stored meanwhile is no part of it.
// What a kill leaves between the word of the drop and its end.
// Evicted blocks are not zeroed. After a drop they cannot be decrypted either, though catalog and tombstone are lost.
TEST_F(EncryptionTest, APolicyThatBeginsToAskForItDropsWhatIsInTheClear) {
  Start({Rules(kRed, 32 * kMiB, 64 * kMiB)});
  StoreOnDisk(Chain(1, 2));
  rules_ = {Encrypted(kRed)};
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 0u);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kUnreadable).count, 2u);
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 2)), 2u);
  Pump();
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
}

// It is sealed when the disk begins with it.
TEST_F(EncryptionTest, WhatWaitsForTheDiskWhileThePolicyBeginsToAskForItIsEncrypted) {
  Start({Rules(kRed, 32 * kMiB, 64 * kMiB)});
  file_->Hold();
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 2)), 2u);
  BeginToEncrypt();
  file_->Release();
  Pump();
  EXPECT_EQ(PagesOnDisk(KeyOf(1)) + PagesOnDisk(KeyOf(2)), 0u);
  EXPECT_EQ(durable_.size(), 2u);
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
}

TEST_F(EncryptionTest, WhatIsInMemoryIsWrittenAgainEncryptedWhenThePolicyBeginsToAskForIt) {
  Start({Rules(kRed, 32 * kMiB, 64 * kMiB)});
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 2)), 2u);
  Pump();
  BeginToEncrypt();
  AdvanceMs(3000);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kInTheClear).count, 2u);
  EXPECT_EQ(StatsOf(kRed).durable_blocks, 2u);
  engine_->CheckInvariants();
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
}

TEST_F(EncryptionTest, ACopyInTheClearMakesNothingDurableThatIsStoredBesideIt) {
  Start({Rules(kRed, 32 * kMiB, 64 * kMiB)});
  StoreOnDisk(Chain(1, 2));
  file_->SetOverdue(1);  // it cannot be read now, and is kept
  BeginToEncrypt();
  durable_.clear();
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 2)), 2u);
  Pump();
  EXPECT_TRUE(durable_.empty());
  file_->SetOverdue(0);
  AdvanceMs(3000);
  EXPECT_EQ(durable_.size(), 2u);
  engine_->CheckInvariants();
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
}

TEST_F(EncryptionTest, ACopyWhoseKeyIsGoneMakesNothingDurableThatIsStoredBesideIt) {
  Start({Encrypted(kRed)});
  StoreOnDisk(Chain(1, 2));
  file_->SetOverdue(1);
  SetKeys(KeyLine(2, 'b'));
  durable_.clear();
  const auto filling = Reserve(kGroup, OpenNs(), Chain(1, 2));
  file_->SetOverdue(0);
  for (const ReservedBlock& block : filling) {
    ASSERT_EQ(engine_->Commit(kGroup, block.reservation, 0), CommitOutcome::kVisible);
    EXPECT_TRUE(durable_.empty());
  }
  Pump();
  EXPECT_EQ(durable_.size(), 2u);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kKeyMissing).count, 2u);
  engine_->CheckInvariants();
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
}

// What nobody can read is nobody's to give up, either: zeros and a receipt were promised.
TEST_F(EncryptionTest, WhatIsOverAgeWhenItsKeyIsGoneIsErased) {
  rules_ = {Encrypted(kRed)};
  rules_[0].max_age_ms = 5000;
  Start(rules_);
  StoreOnDisk(Chain(1, 2));
  file_->SetOverdue(1);
  const auto filling = Reserve(kGroup, OpenNs(), Chain(1, 2));
  ASSERT_EQ(filling[1].outcome, ReserveOutcome::kGranted) << "beside what cannot be read now";
  clock_.AdvanceMs(6000);
  SetKeys(KeyLine(2, 'b'));
  file_->SetOverdue(0);
  for (const ReservedBlock& block : filling) engine_->Commit(kGroup, block.reservation, 0);
  AdvanceMs(3000);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kKeyMissing).count, 0u);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kMaxAge).count, 2u);
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_.back().tenant, kRed);
  engine_->CheckInvariants();
}

TEST_F(EncryptionTest, APinOfWhatNobodyWillBeServedIsRefused) {
  auto rules = Rules(kRed, 32 * kMiB, 64 * kMiB);
  rules.tier(TierKind::kNvme).guarantee_bytes = 64 * kMiB;
  Start({rules});
  StoreOnDisk(Chain(1, 2));
  rules_[0].encrypt_nvme = true;
  engine_->ApplyPolicy(Table());
  EXPECT_EQ(Pin(OpenNs(), Chain(1, 2), 60'000), policy::Refusal::kGone) << "its only copy is in the clear";
  EXPECT_EQ(StatsOf(kRed).pinned_blocks, 0u);
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(100, 2)), 2u);
  EXPECT_EQ(Pin(OpenNs(), Chain(100, 2), 60'000), policy::Refusal::kNone);
}

TEST_F(EncryptionTest, ARestartTakesNothingBackThatIsInTheClearAndMayNotBe) {
  Start({Rules(kRed, 32 * kMiB, 64 * kMiB)});
  StoreOnDisk(Chain(1, 2));
  rules_ = {Encrypted(kRed)};
  Restart();
  EXPECT_EQ(StatsOf(kRed).entries, 0u);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).charged_bytes, 0u);
}

// It is dated after the removal, though that is dated after the tick it began in.
TEST_F(EncryptionTest, WhatIsInMemoryIsWrittenUnderTheNewKeyWhenTheOldOneIsRetired) {
  Start({Encrypted(kRed)});
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 3)), 3u);
  Pump();
  SetKeys(KeyLine(2, 'b'));
  AdvanceMs(3000);
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).drop(DropReason::kKeyMissing).count, 3u);
  EXPECT_EQ(StatsOf(kRed).durable_blocks, 3u);
  Restart();
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 3)).count, 3u);
}

TEST_F(EncryptionTest, HeadersBesideRecordsThatNameTheirKeysAreNoNews) {
  Start({Encrypted(kRed)});
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 3)), 3u);
  Pump();
  catalog_disk_->complete = false;
  Restart();
  EXPECT_TRUE(catalog_disk_->complete);
  EXPECT_EQ(catalog_->counts().puts, 0u);
}

// They would be taken for blocks in the clear once their headers are read no more.
TEST_F(EncryptionTest, KeysThatRecordsOfAnEarlierBuildDoNotNameAreLearntFromTheHeadersAndRecorded) {
  policy::TenantRules rules = Encrypted(kRed);
  rules.tier(TierKind::kNvme).guarantee_bytes = 2 * (kTestBlockBytes + kNvmeHeaderBytes);
  Start({rules});
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 2)), 2u);
  Pump();
  ASSERT_EQ(Pin(OpenNs(), Chain(1, 2), 600'000), Refusal::kNone);
  AdvanceMs(1000);
  for (auto& [slot, header] : catalog_disk_->records) header.seal = {};
  catalog_disk_->complete = false;
  rules_[0].encrypt_nvme = false;
  Restart();
  EXPECT_TRUE(catalog_disk_->complete);
  for (const auto& [slot, header] : catalog_disk_->records) EXPECT_EQ(header.seal.key_id, 1u);
  rules_[0].encrypt_nvme = true;
  Restart();
  EXPECT_EQ(StatsOf(kRed).pinned_blocks, 2u) << "nor did it cost what only the record tells";
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
}

// Before any timer has come to them.
TEST_F(EncryptionTest, ABlockIsNotLostFromMemoryForACopyWhoseKeyIsGone) {
  policy::TenantRules rules = Encrypted(kRed);
  rules.tier(TierKind::kDram).limit_bytes = 8 * kMiB;
  Start({rules});
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(1, 32)), 32u);
  Pump();
  SetKeys(KeyLine(2, 'b'));
  for (uint64_t first = 100; first < 132; first += 8) ASSERT_EQ(Store(kRed, OpenNs(), Chain(first, 8)), 8u);
  EXPECT_EQ(Matched(OpenNs(), Chain(1, 32)), 32u);
  EXPECT_EQ(Matched(OpenNs(), Chain(100, 32)), 32u);
  for (uint64_t first = 1; first < 33; first += 8)
    EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(first, 8)).count, 8u) << first;
}

// Its zeros and its receipt were promised, whatever the policy asks for by now.
TEST_F(EncryptionTest, WhatIsOverAgeAtAStartIsErasedThoughItIsInTheClear) {
  rules_ = {Rules(kRed, 32 * kMiB, 64 * kMiB)};
  rules_[0].max_age_ms = 5000;
  Start(rules_);
  StoreOnDisk(Chain(1, 2));
  ASSERT_GT(PagesOnDisk(KeyOf(1)), 0u);
  Shutdown();
  clock_.AdvanceMs(10'000);
  rules_[0].encrypt_nvme = true;
  Boot();
  AdvanceMs(3000);
  EXPECT_EQ(PagesOnDisk(KeyOf(1)), 0u);
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_.back().blocks, 2u);
}

TEST_F(EncryptionTest, ANodeWithoutAnyKeysRefusesAndReadsWhatIsPlain) {
  ring_ = nullptr;
  Start({Rules(kRed, 32 * kMiB, 64 * kMiB)});
  StoreOnDisk(Chain(1, 2));
  EXPECT_EQ(LookupAndLoad(kRed, OpenNs(), Chain(1, 2)).count, 2u);
  rules_ = {Encrypted(kRed)};
  engine_->ApplyPolicy(Table());
  ASSERT_EQ(Store(kRed, OpenNs(), Chain(50, 2)), 2u);
  Pump();
  EXPECT_EQ(TierStatsOf(kRed, TierKind::kNvme).refusal(Refusal::kEncryptionKeyMissing).count, 2u);
}

}  // namespace
}  // namespace kvartal::engine
