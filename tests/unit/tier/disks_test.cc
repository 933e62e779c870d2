// What the tier promises holds whether it is one disk or three; then what only several can do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "daemon/tier/nvme_disk.h"
#include "daemon/tier/nvme_segment.h"
#include "tests/unit/tier/nvme_tier_fixture.h"

namespace kvartal::tier {
namespace {

using testing::DiskFault;

// A tier over several disks in memory.
class DisksFixture : public NvmeTierFixture {
 protected:
  void Make(const std::vector<uint64_t>& sizes) {
    tier_.reset();
    fakes_.clear();
    for (const uint64_t bytes : sizes) fakes_.push_back(testing::MakeFakeDisk(bytes));
    Join();
  }
  void Join() {
    tier_.reset();
    files_.clear();
    std::vector<std::shared_ptr<NvmeDisk>> disks;
    for (const auto& fake : fakes_) {
      files_.push_back(*testing::FakeBlockFile::Open(fake, &executor_));
      disks.push_back(*NvmeDisk::Open(files_.back().get(), &clock_));
    }
    tier_ = std::make_unique<NvmeTier>(std::move(disks));
  }
  ~DisksFixture() override { tier_.reset(); }

  size_t DiskOf(SlotId slot) const { return tier_->map().Find(slot)->disk; }
  SlotId Behind(SlotId after, uint32_t payload_bytes = kPayload) {
    return tier_->TakeBehind(kDomain, payload_bytes, after);
  }
  void MakeSick(size_t disk, uint32_t errors) {
    files_[disk]->FaultNext(DiskFault::kIoError, static_cast<int>(errors));
    const SlotId slot = SlotOn(disk);
    for (uint32_t i = 0; i < errors; ++i) {
      EXPECT_TRUE(tier_->Erase(slot, [](const absl::Status&) {}));
      executor_.RunAll();
    }
  }
  SlotId SlotOn(size_t disk) {
    std::vector<SlotId> others;
    SlotId slot = Behind(SlotId::None());
    while (slot.valid() && DiskOf(slot) != disk) {
      others.push_back(slot);
      slot = Behind(SlotId::None());
    }
    EXPECT_TRUE(slot.valid());
    for (const SlotId other : others) tier_->Give(kDomain, other);
    tier_->Shrink(kDomain, 0, [] {});
    return slot;
  }

  static constexpr uint64_t kDiskBytes = kNvmeDataStartBytes + 4 * kSegmentMinBytes;
  std::vector<std::shared_ptr<testing::FakeDisk>> fakes_;
  std::vector<std::unique_ptr<testing::FakeBlockFile>> files_;
};

class DisksContract : public DisksFixture, public ::testing::WithParamInterface<size_t> {
 protected:
  DisksContract() { Make(std::vector<uint64_t>(GetParam(), kDiskBytes)); }
};

INSTANTIATE_TEST_SUITE_P(All, DisksContract, ::testing::Values(1, 3),
                         [](const auto& param) { return param.param == 1 ? "OneDisk" : "ThreeDisks"; });

TEST_P(DisksContract, WhatIsWrittenIsReadWhereverItWent) {
  std::map<uint64_t, SlotId> slots;
  std::set<size_t> disks;
  for (uint64_t number = 0; number < 24; ++number) {
    slots[number] = Behind(SlotId::None());
    ASSERT_TRUE(slots[number].valid());
    ASSERT_TRUE(Write(slots[number], number).ok());
    disks.insert(DiskOf(slots[number]));
  }
  EXPECT_EQ(disks.size(), GetParam()) << "heads of chains go where most is free";
  for (const auto& [number, slot] : slots) EXPECT_TRUE(Read(slot, number).ok()) << number;
  EXPECT_EQ(tier_->counters().blocks_written, 24u);
  EXPECT_EQ(tier_->counters().blocks_read, 24u);
}

TEST_P(DisksContract, WhatIsGrantedIsTheSumOverTheDisksAndTheTierCanBeFilledToTheLastSlot) {
  EXPECT_EQ(tier_->stats().capacity_bytes, GetParam() * (4 * kSegmentMinBytes - 4 * kNvmeHeaderBytes));
  uint64_t slots = 0;
  for (SlotId slot = NewSlot(); slot.valid(); slot = NewSlot()) ++slots;
  EXPECT_EQ(tier_->stats().granted_bytes, slots * kExtent);
  EXPECT_EQ(tier_->stats().slots_used, slots);
  uint64_t by_disk = 0;
  for (const DiskStats& disk : tier_->disk_stats()) by_disk += disk.granted_bytes;
  EXPECT_EQ(by_disk, slots * kExtent);
  EXPECT_EQ(slots, GetParam() * 4 * ((kSegmentMinBytes - kNvmeHeaderBytes) / kExtent));
  EXPECT_EQ(tier_->GrowthBytes(kPayload, UINT64_MAX), 0u);
  EXPECT_FALSE(Behind(SlotId::None()).valid());
}

TEST_P(DisksContract, ShrinkKeepsWhatItIsToldToOfAllDisksTogether) {
  std::vector<SlotId> slots;
  for (int i = 0; i < 9; ++i) slots.push_back(Behind(SlotId::None()));
  for (const SlotId slot : slots) tier_->Give(kDomain, slot);
  EXPECT_EQ(tier_->EmptyBytes(kDomain), 9 * kExtent);
  EXPECT_EQ(tier_->Shrink(kDomain, 4 * kExtent, [] {}), 5 * kExtent);
  EXPECT_EQ(tier_->EmptyBytes(kDomain), 4 * kExtent);
  std::set<SlotId> again;
  for (int i = 0; i < 4; ++i) again.insert(tier_->Take(kDomain, kPayload));
  EXPECT_EQ(again.size(), 4u);
  EXPECT_FALSE(again.contains(SlotId::None()));
  EXPECT_FALSE(tier_->Take(kDomain, kPayload).valid()) << "Take never grows";
  EXPECT_EQ(tier_->Shrink(kDomain, 0, [] {}), 0u);
}

TEST_P(DisksContract, HeadersTellOfEveryBlockUnderItsSlotAndItIsAdoptedThere) {
  std::map<uint32_t, uint64_t> written;
  for (uint64_t number = 0; number < 24; ++number) {
    const SlotId slot = Behind(SlotId::None());
    ASSERT_TRUE(Write(slot, number).ok());
    written[slot.value()] = number;
  }
  Join();
  const Scanned scanned = Scan();
  ASSERT_TRUE(scanned.status.ok()) << scanned.status;
  ASSERT_EQ(scanned.records.size(), written.size());
  for (const CatalogRecord& record : scanned.records) {
    ASSERT_TRUE(written.contains(record.slot.value()));
    const uint64_t number = written.at(record.slot.value());
    EXPECT_EQ(record.header.identity.key, IdentityOf(number).key);
    ASSERT_TRUE(tier_->Adopt(kDomain, record.slot, kPayload, record.header.generation));
    EXPECT_FALSE(tier_->Adopt(kDomain, record.slot, kPayload)) << "it is taken";
    EXPECT_TRUE(Read(record.slot, number).ok());
  }
  EXPECT_EQ(tier_->stats().granted_bytes, written.size() * kExtent);
  EXPECT_FALSE(tier_->Adopt(kDomain, SlotId(0xffff'fff0), kPayload));
  EXPECT_FALSE(tier_->Adopt(kDomain, SlotId::None(), kPayload));
}

TEST_P(DisksContract, ASegmentIsEmptiedForAnotherSizeAndItsBlocksAreCopied) {
  std::vector<SlotId> slots;
  for (SlotId slot = NewSlot(); slot.valid(); slot = NewSlot()) slots.push_back(slot);
  // A segment and more of free slots on each disk, scattered.
  std::map<size_t, size_t> seen;
  std::vector<SlotId> kept;
  for (const SlotId slot : slots) {
    if (++seen[DiskOf(slot)] % 2 == 0) {
      Drop(slot);
    } else {
      tier_->SetHolder(slot, EntryId(static_cast<uint32_t>(kept.size())));
      kept.push_back(slot);
    }
  }
  constexpr uint32_t kOtherPayload = 2 * kPayload;
  ASSERT_EQ(tier_->GrowthBytes(kOtherPayload, UINT64_MAX), 0u);
  ASSERT_TRUE(tier_->StartLeaving(kOtherPayload));
  ASSERT_TRUE(tier_->leaving());
  const std::vector<EntryId> holders = tier_->LeavingHolders();
  ASSERT_FALSE(holders.empty());
  for (const EntryId holder : holders) {
    const SlotId from = kept[holder.value()];
    EXPECT_TRUE(tier_->IsLeaving(from));
    ASSERT_TRUE(Write(from, holder.value()).ok());
    const SlotId to = NewSlot();
    ASSERT_TRUE(to.valid());
    EXPECT_EQ(DiskOf(to), DiskOf(from)) << "there was room where it was";
    EXPECT_FALSE(tier_->IsLeaving(to));
    std::optional<absl::StatusOr<BlockHeader>> copied;
    tier_->Copy(from, to, IdentityOf(holder.value()), kCommitMs, kCommitMs,
                [&](absl::StatusOr<BlockHeader> header) { copied = std::move(header); });
    executor_.RunAll();
    ASSERT_TRUE(copied.has_value() && copied->ok());
    EXPECT_TRUE(Read(to, holder.value()).ok());
    Drop(from);
  }
  EXPECT_FALSE(tier_->leaving());
  EXPECT_GT(tier_->GrowthBytes(kOtherPayload, UINT64_MAX), 0u);
}

TEST_P(DisksContract, AReadThatNobodyWantsIsTakenBackWhereItIs) {
  const SlotId slot = Store(5);
  const Mapping payload = Zeros();
  bool done = false;
  files_[DiskOf(slot)]->Hold();
  ASSERT_TRUE(tier_->Read(slot, IdentityOf(5), SpanOf(payload), [&](const absl::Status&) { done = true; }));
  EXPECT_GT(tier_->disk_stats()[DiskOf(slot)].queued_bytes, 0u);
  const bool taken_back = tier_->TakeBack(slot);
  files_[DiskOf(slot)]->Release();
  executor_.RunAll();
  EXPECT_TRUE(taken_back);
  EXPECT_FALSE(done);
  for (const DiskStats& disk : tier_->disk_stats()) EXPECT_EQ(disk.queued_bytes, 0u);
}

// --- several

class DisksTest : public DisksFixture {
 protected:
  DisksTest() { Make({kDiskBytes, kDiskBytes, kDiskBytes}); }
};

TEST_F(DisksTest, ARunOfAChainLiesTogetherOnOneDiskAndALongChainOnSeveral) {
  Make({kNvmeDataStartBytes + 8 * kSegmentMinBytes, kNvmeDataStartBytes + 8 * kSegmentMinBytes});
  constexpr uint32_t kBlock = kMiB;
  std::vector<SlotId> chain;
  for (int i = 0; i < 96; ++i) chain.push_back(Behind(chain.empty() ? SlotId::None() : chain.back(), kBlock));
  size_t changes = 0, run = 1, longest = 1;
  for (size_t i = 1; i < chain.size(); ++i) {
    ASSERT_TRUE(chain[i].valid());
    const bool same = DiskOf(chain[i]) == DiskOf(chain[i - 1]);
    changes += same ? 0 : 1;
    run = same ? run + 1 : 1;
    longest = std::max(longest, run);
  }
  const size_t blocks_of_run = (kDiskRunBytes + kBlock + kNvmeHeaderBytes - 1) / (kBlock + kNvmeHeaderBytes);
  EXPECT_EQ(longest, blocks_of_run);
  EXPECT_EQ(changes, (chain.size() - 1) / blocks_of_run);
}

TEST_F(DisksTest, ConversationsBehindOneSharedPromptLieOnAllDisks) {
  const SlotId prompt = Behind(SlotId::None());
  const SlotId first = Behind(prompt);
  EXPECT_EQ(DiskOf(first), DiskOf(prompt));
  tier_->GoOnBehind(prompt);
  std::map<size_t, size_t> begun;
  for (int i = 0; i < 200; ++i) {
    const SlotId conversation = Behind(prompt);
    ASSERT_TRUE(conversation.valid());
    ++begun[DiskOf(conversation)];
    EXPECT_EQ(DiskOf(Behind(conversation)), DiskOf(conversation)) << "it has a run of its own";
  }
  for (size_t disk = 0; disk < 3; ++disk) EXPECT_LT(begun[disk], 100u) << disk;
}

TEST_F(DisksTest, ADiskThatFailsTakesNoNewBlocksAndTheOthersGoOn) {
  const SlotId on_sick = SlotOn(1), on_other = SlotOn(2);
  ASSERT_TRUE(Write(on_sick, 1).ok());
  ASSERT_TRUE(Write(on_other, 2).ok());
  MakeSick(1, kDeviceErrorsMax);
  EXPECT_EQ(tier_->DeviceStateOf(on_sick), DeviceState::kDegraded);
  EXPECT_EQ(tier_->DeviceStateOf(on_other), DeviceState::kHealthy);
  EXPECT_EQ(tier_->device_state(), DeviceState::kHealthy);
  EXPECT_TRUE(tier_->stats().healthy);
  EXPECT_TRUE(Read(on_sick, 1).ok()) << "reads go on";
  for (int i = 0; i < 24; ++i) EXPECT_NE(DiskOf(Behind(SlotId::None())), 1u);
  EXPECT_NE(DiskOf(Behind(on_sick)), 1u) << "not even behind a parent that is there";
}

TEST_F(DisksTest, OneOfflineDiskIsNoOfflineTierAndComesBackByItself) {
  const SlotId on_sick = SlotOn(1), on_other = SlotOn(2);
  ASSERT_TRUE(Write(on_sick, 1).ok());
  ASSERT_TRUE(Write(on_other, 2).ok());
  MakeSick(1, kDeviceErrorsOfflineMax);
  EXPECT_EQ(tier_->DeviceStateOf(on_sick), DeviceState::kOffline);
  EXPECT_EQ(tier_->device_state(), DeviceState::kHealthy);
  const Mapping payload = Zeros();
  EXPECT_FALSE(tier_->Read(on_sick, IdentityOf(1), SpanOf(payload), [](const absl::Status&) {}));
  EXPECT_TRUE(Read(on_other, 2).ok());
  clock_.AdvanceMs(kDeviceErrorWindowMs + 1);
  EXPECT_EQ(tier_->DeviceStateOf(on_sick), DeviceState::kHealthy);
  EXPECT_TRUE(Read(on_sick, 1).ok()) << "it was there all the while";
}

TEST_F(DisksTest, TheTierIsOfflineWhenAllOfItsDisksAre) {
  for (size_t disk = 0; disk < 3; ++disk) files_[disk]->SetOverdue(1);
  EXPECT_EQ(tier_->device_state(), DeviceState::kOffline);
  EXPECT_EQ(tier_->GrowthBytes(kPayload, UINT64_MAX), 0u);
  files_[2]->SetOverdue(0);
  EXPECT_EQ(tier_->device_state(), DeviceState::kHealthy);
  EXPECT_EQ(DiskOf(Behind(SlotId::None())), 2u);
}

TEST_F(DisksTest, AFullDiskQueueRefusesItsOwnTransfersAlone) {
  const SlotId first = SlotOn(0), second = SlotOn(1);
  files_[0]->SetQueueMax(1);
  files_[0]->Hold();
  const Mapping payload = PayloadOf(1);
  const auto write = [&](SlotId slot) {
    return tier_->Write(slot, IdentityOf(1), kCommitMs, kCommitMs, SpanOf(payload),
                        [](const absl::StatusOr<BlockHeader>&) {});
  };
  ASSERT_TRUE(write(first));
  const SlotId third = SlotOn(0);
  EXPECT_FALSE(tier_->Erase(third, [](const absl::Status&) {}));
  EXPECT_TRUE(write(second));
  files_[0]->Release();
  executor_.RunAll();
}

TEST_F(DisksTest, WhatSaysToReadHeadersOfOneDiskReadsThoseAlone) {
  for (uint64_t number = 0; number < 24; ++number) ASSERT_TRUE(Write(Behind(SlotId::None()), number).ok());
  Join();
  std::vector<CatalogRecord> records;
  const uint64_t reads_elsewhere = files_[0]->counts().reads + files_[2]->counts().reads;
  bool done = false;
  tier_->ScanHeaders(
      [&](const std::vector<CatalogRecord>& batch) { records.insert(records.end(), batch.begin(), batch.end()); },
      [&](const absl::Status& status) { done = status.ok(); }, SetOfDisk(1));
  executor_.RunAll();
  EXPECT_TRUE(done);
  EXPECT_FALSE(records.empty());
  for (const CatalogRecord& record : records) EXPECT_EQ(DiskOf(record.slot), 1u);
  EXPECT_EQ(files_[0]->counts().reads + files_[2]->counts().reads, reads_elsewhere);
}

TEST_F(DisksTest, ADiskOfAnotherSizeHasSegmentsOfItsOwnAndHoldsBlocksTheOthersCannot) {
  constexpr uint32_t kLarge = 20 * kMiB;  // more than a segment of the small ones
  EXPECT_FALSE(tier_->Fits(kLarge));
  Make({kDiskBytes, kNvmeDataStartBytes + 64 * 2 * kSegmentMinBytes, kDiskBytes});
  EXPECT_TRUE(tier_->Fits(kLarge));
  for (int i = 0; i < 3; ++i) {
    const SlotId slot = Behind(SlotId::None(), kLarge);
    ASSERT_TRUE(slot.valid());
    EXPECT_EQ(DiskOf(slot), 1u);
  }
  const SlotId on_small = SlotOn(0), on_large = SlotOn(1);
  EXPECT_EQ(tier_->DisksThatTake(kLarge) & SetOfDisk(tier_->DiskOf(on_small)), kNoDisk) << "whatever goes there";
  EXPECT_NE(tier_->DisksThatTake(kPayload) & SetOfDisk(tier_->DiskOf(on_small)), kNoDisk);
  EXPECT_NE(tier_->DisksThatTake(kLarge) & SetOfDisk(tier_->DiskOf(on_large)), kNoDisk);
  files_[1]->SetOverdue(1);
  EXPECT_FALSE(tier_->Fits(kLarge)) << "nor does it help to wait for room elsewhere";
  EXPECT_EQ(tier_->DisksThatTake(kPayload) & SetOfDisk(tier_->DiskOf(on_large)), kNoDisk);
}

TEST_F(DisksTest, ABlockIsCopiedToAnotherDiskWhereItsOwnHasNoRoom) {
  const SlotId from = SlotOn(0), to = SlotOn(2);
  ASSERT_TRUE(Write(from, 5).ok());
  std::optional<absl::StatusOr<BlockHeader>> copied;
  tier_->Copy(from, to, IdentityOf(5), kCommitMs, kCommitMs,
              [&](absl::StatusOr<BlockHeader> header) { copied = std::move(header); });
  executor_.RunAll();
  ASSERT_TRUE(copied.has_value() && copied->ok());
  EXPECT_TRUE(Read(to, 5).ok());
}

TEST_F(DisksTest, WhatIsUnderWayWhenTheTierGoesTellsNobody) {
  bool told = false;
  const SlotId from = SlotOn(0), to = SlotOn(1);
  ASSERT_TRUE(Write(from, 5).ok());
  tier_->Copy(from, to, IdentityOf(5), kCommitMs, kCommitMs, [&](const absl::StatusOr<BlockHeader>&) { told = true; });
  tier_.reset();
  executor_.RunAll();
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace kvartal::tier
