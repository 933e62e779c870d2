#include "daemon/tier/nvme_tier.h"

#include <set>

#include "daemon/base/check.h"
#include "tests/unit/tier/nvme_tier_fixture.h"

namespace kvartal::tier {
namespace {

using ::testing::HasSubstr;

using NvmeTierTest = NvmeTierFixture;

TEST_F(NvmeTierTest, WhatIsWrittenIsRead) {
  const SlotId slot = NewSlot();
  const absl::StatusOr<BlockHeader> header = Write(slot, 7);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->identity.key, IdentityOf(7).key);
  EXPECT_EQ(header->first_commit_ms, kCommitMs);
  EXPECT_EQ(header->last_access_ms, kCommitMs + 1);
  EXPECT_EQ(header->payload_xxh3, PayloadChecksum(SpanOf(PayloadOf(7))));
  EXPECT_GT(header->generation, 0u);
  EXPECT_TRUE(Read(slot, 7).ok());
  EXPECT_EQ(tier_->counters().blocks_written, 1u);
  EXPECT_EQ(tier_->counters().bytes_written, kExtent);
  EXPECT_EQ(tier_->counters().blocks_read, 1u);
  EXPECT_EQ(tier_->counters().bytes_read, kExtent);
}

TEST_F(NvmeTierTest, ACopyIsVerifiedAndHasAGenerationOfItsOwn) {
  const SlotId from = NewSlot(), to = NewSlot();
  const absl::StatusOr<BlockHeader> written = Write(from, 7);
  std::optional<absl::StatusOr<BlockHeader>> copied;
  const auto copy = [&](uint64_t number) {
    copied.reset();
    tier_->Copy(from, to, IdentityOf(number), kCommitMs, kCommitMs + 5,
                [&](absl::StatusOr<BlockHeader> header) { copied = std::move(header); });
    executor_.RunAll();
    return *copied;
  };
  ASSERT_TRUE(copy(7).ok());
  EXPECT_GT((*copied)->generation, written->generation);
  EXPECT_EQ((*copied)->payload_xxh3, written->payload_xxh3);
  EXPECT_TRUE(Read(to, 7).ok());
  EXPECT_TRUE(Read(from, 7).ok()) << "the old one stays until it is given back";
  EXPECT_TRUE(absl::IsDataLoss(copy(8).status())) << "another block is there";
  file_->FaultNext(testing::DiskFault::kIoError);
  EXPECT_TRUE(absl::IsUnavailable(copy(7).status()));
  file_->SetQueueMax(1);
  file_->Hold();
  Mapping payload = Zeros();
  ASSERT_TRUE(tier_->Read(from, IdentityOf(7), SpanOf(payload), [](const absl::Status&) {}));
  EXPECT_TRUE(absl::IsResourceExhausted(copy(7).status()));
  file_->Release();
  executor_.RunAll();
}

TEST_F(NvmeTierTest, ASegmentWithASlotOutOfUseDoesNotLeave) {
  std::vector<SlotId> slots;
  for (SlotId slot = NewSlot(); slot.valid(); slot = NewSlot()) slots.push_back(slot);
  const size_t a_segment = slots.size() / 4;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i % 2 == 1 && i >= a_segment) continue;
    if (i == 1) continue;  // one block is left in the first
    tier_->Give(kDomain, slots[i]);
  }
  tier_->SetHolder(slots[1], EntryId(11));
  tier_->Shrink(kDomain, 0, [] {});
  ASSERT_TRUE(tier_->StartLeaving(2 * kPayload));
  EXPECT_EQ(tier_->LeavingHolders(), std::vector<EntryId>{EntryId(11)});
  EXPECT_TRUE(tier_->IsLeaving(slots[1]));
  EXPECT_FALSE(tier_->IsLeaving(slots[a_segment + 1]));
  tier_->StopLeaving();
  EXPECT_FALSE(tier_->IsLeaving(slots[1]));
  const SlotId bad = NewSlot();
  file_->FaultNext(testing::DiskFault::kIoError, 2);
  ASSERT_FALSE(Write(bad, 1).ok());
  const bool in_first = bad < slots[a_segment];
  tier_->Give(kDomain, bad);
  tier_->Shrink(kDomain, 0, [] {});
  ASSERT_EQ(tier_->counters().quarantined_slots, 1u);
  ASSERT_TRUE(tier_->StartLeaving(2 * kPayload));
  EXPECT_NE(tier_->IsLeaving(slots[1]), in_first);
}

// What each is for decides who waits for whom at a busy disk.
TEST_F(NvmeTierTest, EveryTransferHasTheClassOfWhatItIsFor) {
  using device::BlockIo;
  using device::IoClass;
  const SlotId slot = NewSlot(), to = NewSlot();
  const Mapping payload = PayloadOf(7);
  const auto last = [this] { return file_->recent().back().io_class; };
  ASSERT_TRUE(Write(slot, 7).ok());
  EXPECT_EQ(last(), IoClass::kDemotion);
  ASSERT_TRUE(tier_->Read(slot, IdentityOf(7), SpanOf(payload), [](const absl::Status&) {}));
  EXPECT_EQ(last(), IoClass::kDemandRead);
  ASSERT_TRUE(tier_->ReadAhead(slot, IdentityOf(7), SpanOf(payload), [](const absl::Status&) {}));
  EXPECT_EQ(last(), IoClass::kPromotion);
  executor_.RunAll();
  tier_->Copy(slot, to, IdentityOf(7), kCommitMs, kCommitMs, [](const absl::StatusOr<BlockHeader>&) {});
  EXPECT_EQ(last(), IoClass::kDemotion);
  executor_.RunAll();
  EXPECT_EQ(last(), IoClass::kDemotion);
  EXPECT_EQ(file_->recent().back().op, BlockIo::Op::kWrite);
  ASSERT_TRUE(tier_->Erase(to, [](const absl::Status&) {}));
  EXPECT_EQ(last(), IoClass::kScrub);
  executor_.RunAll();
}

// The contract of tier.h: charge GrowthBytes -> Grow -> Take -> Give -> Shrink -> refund what it returned.
TEST_F(NvmeTierTest, ASlotIsItsOwnExtent) {
  EXPECT_EQ(tier_->kind(), TierKind::kNvme);
  EXPECT_EQ(tier_->GrowthBytes(kPayload, UINT64_MAX), kExtent);
  EXPECT_EQ(tier_->GrowthBytes(kPayload - 1, UINT64_MAX), kExtent);
  EXPECT_EQ(tier_->GrowthBytes(kPayload, kExtent - 1), 0u);
  EXPECT_EQ(tier_->GrowthBytes(0, UINT64_MAX), 0u);
  EXPECT_FALSE(tier_->Take(kDomain, kPayload).valid());

  absl::Status grown = absl::UnknownError("");
  tier_->Grow(kDomain, kPayload, kExtent, [&](absl::Status status) { grown = std::move(status); });
  EXPECT_TRUE(grown.ok());
  EXPECT_EQ(tier_->EmptyBytes(kDomain), kExtent);
  EXPECT_EQ(tier_->stats().granted_bytes, kExtent);
  EXPECT_EQ(tier_->stats().used_bytes, 0u);
  EXPECT_FALSE(tier_->Take(kOther, kPayload).valid()) << "the slot is another domain's";
  EXPECT_FALSE(tier_->Take(kDomain, 2 * kPayload).valid());

  const SlotId slot = tier_->Take(kDomain, kPayload);
  ASSERT_TRUE(slot.valid());
  EXPECT_FALSE(tier_->Take(kDomain, kPayload).valid()) << "taken once at a time";
  EXPECT_EQ(tier_->EmptyBytes(kDomain), 0u);
  EXPECT_EQ(tier_->stats().used_bytes, kExtent);
  EXPECT_EQ(tier_->stats().slots_used, 1u);
  EXPECT_EQ(tier_->Shrink(kDomain, 0, [] {}), 0u) << "a taken slot is not empty";

  tier_->Give(kDomain, slot);
  EXPECT_EQ(tier_->stats().used_bytes, 0u);
  EXPECT_EQ(tier_->EmptyBytes(kDomain), kExtent);
  EXPECT_EQ(tier_->Take(kDomain, kPayload), slot) << "reused without a new charge";
  tier_->Give(kDomain, slot);
  EXPECT_EQ(tier_->Shrink(kDomain, kExtent, [] {}), 0u) << "may be kept";
  bool free_again = false;
  EXPECT_EQ(tier_->Shrink(kDomain, 0, [&] { free_again = true; }), kExtent);
  EXPECT_TRUE(free_again);
  EXPECT_EQ(tier_->stats().granted_bytes, 0u);
  EXPECT_FALSE(tier_->Take(kDomain, kPayload).valid());
}

TEST_F(NvmeTierTest, ShrinkKeepsAtMostWhatItWasTold) {
  std::vector<SlotId> slots;
  for (int i = 0; i < 5; ++i) slots.push_back(NewSlot());
  for (const SlotId slot : slots) tier_->Give(kDomain, slot);
  EXPECT_EQ(tier_->Shrink(kDomain, 2 * kExtent + 1, [] {}), 3 * kExtent);
  EXPECT_EQ(tier_->EmptyBytes(kDomain), 2 * kExtent);
}

TEST_F(NvmeTierTest, AFullFileRefusesGrowth) {
  std::set<SlotId> slots;
  while (tier_->GrowthBytes(kPayload, UINT64_MAX) != 0) ASSERT_TRUE(slots.insert(NewSlot()).second);
  EXPECT_EQ(slots.size(), 4 * ((kSegmentMinBytes - kNvmeHeaderBytes) / kExtent));
  EXPECT_LE(tier_->stats().granted_bytes, tier_->stats().capacity_bytes);
  absl::Status status;
  tier_->Grow(kDomain, kPayload, kExtent, [&](absl::Status grown) { status = std::move(grown); });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  Drop(*slots.begin());
  EXPECT_EQ(NewSlot(kOther), *slots.begin()) << "what one gave back is free for anyone";
}

TEST_F(NvmeTierTest, FlippedBitInHeaderIsAMissAndCounted) {
  const SlotId slot = Store(1);
  OnDisk(slot)[100] ^= std::byte{0x10};
  const absl::Status status = Read(slot, 1);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(tier_->counters().header_mismatches, 1u);
  EXPECT_EQ(tier_->counters().checksum_mismatches, 0u);
  EXPECT_EQ(tier_->counters().blocks_read, 0u);
  EXPECT_TRUE(tier_->stats().healthy) << "a mismatch is not a device error";
}

TEST_F(NvmeTierTest, FlippedBitInPayloadIsAMissAndCounted) {
  const SlotId slot = Store(1);
  OnDisk(slot).back() ^= std::byte{0x01};
  const absl::Status status = Read(slot, 1);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("payload checksum"));
  EXPECT_EQ(tier_->counters().checksum_mismatches, 1u);
  EXPECT_EQ(tier_->counters().header_mismatches, 0u);
}

TEST_F(NvmeTierTest, AReusedSlotDoesNotAnswerForItsPast) {
  const SlotId slot = Store(1);
  Drop(slot);
  ASSERT_EQ(NewSlot(), slot);
  ASSERT_TRUE(Write(slot, 2).ok());
  const absl::Status status = Read(slot, 1);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another key"));
  EXPECT_TRUE(Read(slot, 2).ok());
}

TEST_F(NvmeTierTest, OwnerDigestAndKeyMustAllAgree) {
  const SlotId slot = Store(1);
  const auto read_as = [&](const BlockIdentity& identity) {
    const Mapping payload = Zeros();
    absl::Status result = absl::UnknownError("never done");
    EXPECT_TRUE(tier_->Read(slot, identity, SpanOf(payload), [&](absl::Status status) { result = std::move(status); }));
    executor_.RunAll();
    return result;
  };
  BlockIdentity identity = IdentityOf(1);
  identity.owner[15] ^= 1;
  EXPECT_THAT(std::string(read_as(identity).message()), HasSubstr("another owner"));
  identity = IdentityOf(1);
  identity.digest.bytes[31] ^= 1;
  EXPECT_THAT(std::string(read_as(identity).message()), HasSubstr("another namespace digest"));
  identity = IdentityOf(1);
  identity.key.bytes[31] ^= 1;
  EXPECT_THAT(std::string(read_as(identity).message()), HasSubstr("another key"));
  EXPECT_EQ(tier_->counters().header_mismatches, 3u);
  EXPECT_TRUE(read_as(IdentityOf(1)).ok());
}

// The same block written twice: the disk kept the older one, whole and with a right checksum.
TEST_F(NvmeTierTest, AnOlderGenerationOfTheSameBlockIsAMiss) {
  const SlotId slot = Store(1);
  const std::vector<std::byte> before(OnDisk(slot).begin(), OnDisk(slot).end());
  ASSERT_TRUE(Write(slot, 1).ok());
  std::copy(before.begin(), before.end(), OnDisk(slot).begin());
  const absl::Status status = Read(slot, 1);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation"));
}

TEST_F(NvmeTierTest, AMisplacedBlockIsAMiss) {
  const SlotId first = Store(1);
  const SlotId second = Store(2);
  std::copy(OnDisk(first).begin(), OnDisk(first).end(), OnDisk(second).begin());
  EXPECT_TRUE(absl::IsDataLoss(Read(second, 1)));
  EXPECT_TRUE(absl::IsDataLoss(Read(second, 2)));
}

// A disk in front of another: a byte of each payload changes once its checksum was taken, before it is on the disk.
class MeddledFile : public device::BlockFile {
 public:
  explicit MeddledFile(device::BlockFile* disk) : disk_(disk) {}
  uint64_t size_bytes() const override { return disk_->size_bytes(); }
  bool direct_io() const override { return disk_->direct_io(); }
  bool Submit(device::BlockIo io) override {
    if (io.op == device::BlockIo::Op::kWrite && io.part_count == 2) {
      io.before = [seal = std::move(io.before)](device::BlockIo& sealed) mutable {
        absl::Status status = seal(sealed);
        static_cast<std::byte*>(sealed.parts[1].iov_base)[5] ^= std::byte{0xff};
        return status;
      };
    }
    return disk_->Submit(std::move(io));
  }
  absl::Status ReadNow(uint64_t offset, void* data, size_t bytes) override {
    return disk_->ReadNow(offset, data, bytes);
  }
  absl::Status WriteNow(uint64_t offset, const void* data, size_t bytes) override {
    return disk_->WriteNow(offset, data, bytes);
  }
  absl::Status Sync() override { return disk_->Sync(); }
  size_t Pending() const override { return disk_->Pending(); }

 private:
  device::BlockFile* const disk_;
};

// A client may write its slot while it is on its way to the disk: the block is lost, never wrong.
TEST_F(NvmeTierTest, PayloadChangedDuringTheWriteIsAMiss) {
  MeddledFile meddled(file_.get());
  tier_ = *NvmeTier::Open(&meddled, &clock_);
  const SlotId slot = NewSlot();
  ASSERT_TRUE(Write(slot, 2).ok());
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 2)));
  EXPECT_EQ(tier_->counters().checksum_mismatches, 1u);
  tier_.reset();
}

TEST_F(NvmeTierTest, TwoSizesShareTheFileAndASegmentChangesSizeWhenEmpty) {
  constexpr uint32_t kBig = 2 * 1024 * 1024;
  std::vector<SlotId> small;
  while (tier_->GrowthBytes(kPayload, UINT64_MAX) != 0) small.push_back(NewSlot());
  for (size_t i = 0; i < small.size(); i += 97) ASSERT_TRUE(Write(small[i], i).ok());
  EXPECT_EQ(tier_->GrowthBytes(kBig, UINT64_MAX), 0u) << "every segment has the other size";
  const uint64_t headers = tier_->counters().segment_headers_written;
  EXPECT_GE(headers, 1u);

  // The first segment is emptied: it takes the other size, and its header says so before a slot of it is written.
  const uint64_t first_end = kNvmeDataStartBytes + kSegmentMinBytes;
  for (const SlotId slot : small) {
    if (uint64_t{slot.value()} * kSlotAlignBytes < first_end) Drop(slot);
  }
  const SlotId big = NewSlot(kDomain, kBig);
  ASSERT_TRUE(big.valid());
  ASSERT_TRUE(Write(big, 5000, kBig).ok());
  EXPECT_EQ(tier_->counters().segment_headers_written, headers + 1);
  const absl::StatusOr<SegmentHeader> header =
      DecodeSegmentHeader(file_->bytes().subspan(kNvmeDataStartBytes, kNvmeHeaderBytes));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->payload_bytes, kBig);
  EXPECT_TRUE(Read(big, 5000, kBig).ok());
  for (size_t i = 0; i < small.size(); i += 97) {
    if (uint64_t{small[i].value()} * kSlotAlignBytes >= first_end) {
      EXPECT_TRUE(Read(small[i], i).ok());
    }
  }
}

TEST_F(NvmeTierTest, SegmentHeaderIsOnDiskBeforeAnySlotOfIt) {
  const std::vector<SlotId> slots = {NewSlot(), NewSlot(), NewSlot()};
  const Mapping payload = PayloadOf(1);
  int written = 0;
  for (const SlotId slot : slots) {
    ASSERT_TRUE(tier_->Write(slot, IdentityOf(1), kCommitMs, kCommitMs, SpanOf(payload),
                             [&](const absl::StatusOr<BlockHeader>& header) { written += header.ok() ? 1 : 0; }));
  }
  EXPECT_EQ(file_->Pending(), 1u) << "only the segment's header is under way";
  ASSERT_TRUE(executor_.RunOne());
  EXPECT_TRUE(DecodeSegmentHeader(file_->bytes().subspan(kNvmeDataStartBytes, kNvmeHeaderBytes)).ok());
  EXPECT_EQ(written, 0);
  EXPECT_EQ(file_->Pending(), 3u);
  executor_.RunAll();
  EXPECT_EQ(written, 3);
  EXPECT_EQ(tier_->counters().segment_headers_written, 1u);
}

TEST_F(NvmeTierTest, ErasedIsZeroedAndAMiss) {
  const SlotId kept = Store(1);
  const SlotId slot = Store(2);
  const SlotId after = Store(3);
  absl::Status erased = absl::UnknownError("never done");
  ASSERT_TRUE(tier_->Erase(slot, [&](absl::Status status) { erased = std::move(status); }));
  executor_.RunAll();
  EXPECT_TRUE(erased.ok()) << erased;
  const std::span<std::byte> bytes = OnDisk(slot);
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 2)));
  EXPECT_TRUE(Read(kept, 1).ok());
  EXPECT_TRUE(Read(after, 3).ok());
}

TEST_F(NvmeTierTest, FullDiskQueueIsARefusalThatLeavesNothingBehind) {
  const SlotId stored = Store(1);
  const SlotId slot = NewSlot();
  file_->Hold();
  file_->SetQueueMax(1);
  const Mapping payload = PayloadOf(2);
  const Mapping target = Zeros();
  int done = 0;
  ASSERT_TRUE(tier_->Read(stored, IdentityOf(1), SpanOf(target), [&](const absl::Status&) { ++done; }));
  EXPECT_FALSE(tier_->Read(stored, IdentityOf(1), SpanOf(target), [&](const absl::Status&) { ++done; }));
  EXPECT_FALSE(tier_->Write(slot, IdentityOf(2), kCommitMs, kCommitMs, SpanOf(payload),
                            [&](const absl::StatusOr<BlockHeader>&) { ++done; }));
  EXPECT_FALSE(tier_->Erase(slot, [&](const absl::Status&) { ++done; }));
  file_->Release();
  file_->SetQueueMax(0);
  executor_.RunAll();
  EXPECT_EQ(done, 1);
  const uint64_t bugs = BugCount();
  Drop(slot);  // no transfer is counted for the refused ones
  EXPECT_EQ(BugCount(), bugs);
}

// Writes that were accepted while their segment had no header yet find the queue full when it has.
TEST_F(NvmeTierTest, WaitingWritesGoOutAsTheQueueDrains) {
  std::vector<SlotId> slots;
  std::vector<Mapping> payloads;
  for (uint64_t i = 0; i < 20; ++i) {
    slots.push_back(NewSlot());
    payloads.push_back(PayloadOf(i));
  }
  file_->SetQueueMax(2);
  size_t written = 0;
  for (uint64_t i = 0; i < slots.size(); ++i) {
    ASSERT_TRUE(tier_->Write(slots[i], IdentityOf(i), kCommitMs, kCommitMs, SpanOf(payloads[i]),
                             [&](const absl::StatusOr<BlockHeader>& header) { written += header.ok() ? 1 : 0; }));
  }
  executor_.RunAll();
  EXPECT_EQ(written, slots.size());
  file_->SetQueueMax(0);
  for (uint64_t i = 0; i < slots.size(); ++i) EXPECT_TRUE(Read(slots[i], i).ok()) << i;
}

TEST_F(NvmeTierTest, WhatWaitsLongestForTheQueueGoesFirst) {
  const SlotId ready = Store(1000);
  constexpr size_t kOfEach = 8;
  std::vector<uint32_t> sizes;
  std::vector<SlotId> slots;
  std::vector<Mapping> payloads;
  for (const uint32_t size : {2 * kPayload, 4 * kPayload}) {
    for (size_t i = 0; i < kOfEach; ++i) {
      sizes.push_back(size);
      slots.push_back(NewSlot(kDomain, size));
      payloads.push_back(PayloadOf(slots.size(), size));
    }
  }
  const SlotId next = NewSlot();
  ASSERT_EQ(next.value() / 1024, ready.value() / 1024) << "in a segment that has its header";
  const Mapping payload = PayloadOf(2000);
  file_->SetQueueMax(2);
  std::vector<uint32_t> written;
  bool refused = false;
  for (size_t i = 0; i < slots.size(); ++i) {
    ASSERT_TRUE(tier_->Write(slots[i], IdentityOf(i, sizes[i]), kCommitMs, kCommitMs, SpanOf(payloads[i]),
                             [&, i](const absl::StatusOr<BlockHeader>& header) {
                               ASSERT_TRUE(header.ok());
                               written.push_back(sizes[i]);
                               if (i != 0) return;
                               refused = !tier_->Write(next, IdentityOf(2000), kCommitMs, kCommitMs, SpanOf(payload),
                                                       [](const absl::StatusOr<BlockHeader>&) {});
                             }));
  }
  executor_.RunAll();
  EXPECT_EQ(written, sizes) << "the first segment's, then the other's";
  EXPECT_TRUE(refused) << "the room that a write leaves is for those that wait";
}

TEST_F(NvmeTierTest, GivingASlotDuringATransferIsDeferredAndReported) {
  ::unsetenv("KVARTAL_BUGS_FATAL");
  ASSERT_TRUE(Store(1).valid());
  const SlotId slot = NewSlot();
  const Mapping payload = PayloadOf(2);
  bool done = false;
  ASSERT_TRUE(tier_->Write(slot, IdentityOf(2), kCommitMs, kCommitMs, SpanOf(payload),
                           [&](const absl::StatusOr<BlockHeader>&) { done = true; }));
  const uint64_t bugs = BugCount();
  tier_->Give(kDomain, slot);
  EXPECT_EQ(BugCount(), bugs + 1);
  EXPECT_EQ(tier_->Shrink(kDomain, 0, [] {}), 0u) << "nobody may get it while the disk still writes it";
  EXPECT_NE(NewSlot(kOther), slot);
  executor_.RunAll();
  EXPECT_TRUE(done);
  EXPECT_EQ(tier_->Shrink(kDomain, 0, [] {}), kExtent);
  std::set<SlotId> rest;
  while (tier_->GrowthBytes(kPayload, UINT64_MAX) != 0) rest.insert(NewSlot(kOther));
  EXPECT_TRUE(rest.contains(slot));
}

TEST_F(NvmeTierTest, GenerationsRiseAndAreNeverUsedTwice) {
  const SlotId slot = NewSlot();
  uint64_t last = 0;
  for (int life = 0; life < 3; ++life) {
    for (uint64_t i = 0; i < 3; ++i) {
      const SlotId written = life == 0 && i == 0 ? slot : NewSlot();
      const absl::StatusOr<BlockHeader> header = Write(written, i);
      ASSERT_TRUE(header.ok());
      EXPECT_GT(header->generation, last) << "life " << life;
      last = header->generation;
    }
    Restart();  // with the same clock: time must not matter
  }
}

TEST_F(NvmeTierTest, TierMayGoWhileTransfersAreUnderWay) {
  const SlotId stored = Store(1);
  const SlotId fresh = NewSlot();
  const Mapping payload = PayloadOf(2);
  const Mapping target = Zeros();
  bool called = false;
  ASSERT_TRUE(tier_->Read(stored, IdentityOf(1), SpanOf(target), [&](const absl::Status&) { called = true; }));
  ASSERT_TRUE(tier_->Write(fresh, IdentityOf(2), kCommitMs, kCommitMs, SpanOf(payload),
                           [&](const absl::StatusOr<BlockHeader>&) { called = true; }));
  tier_->ScanHeaders([&](const std::vector<CatalogRecord>&) { called = true; },
                     [&](const absl::Status&) { called = true; });
  tier_.reset();
  executor_.RunAll();
  EXPECT_FALSE(called);
}

TEST(SegmentBytesFor, IsAPowerOfTwoWithinItsBounds) {
  EXPECT_EQ(SegmentBytesFor(0), kSegmentMinBytes);
  EXPECT_EQ(SegmentBytesFor(kGiB), 16 * kMiB);
  EXPECT_EQ(SegmentBytesFor(3 * kGiB), 32 * kMiB);
  EXPECT_EQ(SegmentBytesFor(8 * kGiB), 128 * kMiB);
  EXPECT_EQ(SegmentBytesFor(7 * kTiB), kSegmentMaxBytes);
}

}  // namespace
}  // namespace kvartal::tier
