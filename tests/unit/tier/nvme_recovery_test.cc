// Opening a device again: superblocks, adoption from a catalog, and reading the headers when the catalog is lost.
#include <map>
#include <set>

#include "daemon/tier/nvme_superblock.h"
#include "daemon/tier/nvme_tier.h"
#include "tests/unit/tier/nvme_tier_fixture.h"

namespace kvartal::tier {
namespace {

using testing::DiskFault;
using ::testing::HasSubstr;

class NvmeRecoveryTest : public NvmeTierFixture {
 protected:
  std::span<std::byte> Copy(int copy) { return file_->bytes().subspan(copy * kNvmeHeaderBytes, kNvmeHeaderBytes); }
  // A superblock page as another build would leave it.
  void SetVersion(int copy, uint32_t version) { std::memcpy(Copy(copy).data() + 8, &version, sizeof(version)); }
};

TEST_F(NvmeRecoveryTest, DeviceKeepsItsIdOverRestarts) {
  const std::string id = tier_->device_id();
  EXPECT_EQ(id.size(), 32u);
  Restart();
  EXPECT_EQ(tier_->device_id(), id);
  const uint64_t count = DecodeSuperblock(Copy(0))->open_count;
  Restart();
  EXPECT_EQ(DecodeSuperblock(Copy(0))->open_count, count + 1);
  EXPECT_EQ(DecodeSuperblock(Copy(1))->open_count, count + 1);
}

TEST_F(NvmeRecoveryTest, AnotherFormatVersionIsRefusedWithAdvice) {
  SetVersion(0, 2);
  SetVersion(1, 2);
  const std::vector<std::byte> before(file_->bytes().begin(), file_->bytes().end());
  const absl::Status status = TryStart();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format version 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("move the file away"));
  EXPECT_TRUE(std::equal(before.begin(), before.end(), file_->bytes().begin())) << "nothing is written to it";
}

TEST_F(NvmeRecoveryTest, AForeignFileIsRefusedAndLeftAlone) {
  for (const uint64_t at : {uint64_t{0}, uint64_t{1024}, uint64_t{64 * kKiB}}) {
    SCOPED_TRACE(at);
    std::fill(file_->bytes().begin(), file_->bytes().end(), std::byte{0});
    file_->bytes()[at] = std::byte{0x53};
    const absl::Status status = TryStart();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a Kvartal cache"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("move the file away"));
    EXPECT_FALSE(DecodeSuperblock(Copy(0)).ok());
  }
}

TEST_F(NvmeRecoveryTest, EitherDamagedCopyIsMended) {
  const SlotId slot = Store(1);
  const std::string id = tier_->device_id();
  for (const int copy : {0, 1}) {
    SCOPED_TRACE(copy);
    Copy(copy)[20] ^= std::byte{1};
    Restart();
    EXPECT_EQ(tier_->device_id(), id);
    EXPECT_TRUE(DecodeSuperblock(Copy(copy)).ok()) << "mended";
    ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload));
    EXPECT_TRUE(Read(slot, 1).ok());
  }
}

// Clients map the memory a block is read into. A record that is older than its slot has another tenant's block there.
TEST_F(NvmeRecoveryTest, AnotherTenantsBlockDoesNotPassThroughTheMemoryItIsReadInto) {
  const SlotId slot = Store(1, kOther);
  Restart();
  ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload));
  const Mapping payload = Zeros();
  for (const testing::DiskFault fault : {testing::DiskFault::kShortTransfer, testing::DiskFault::kNone}) {
    file_->FaultNext(fault);
    std::optional<absl::Status> result;
    ASSERT_TRUE(tier_->Read(slot, IdentityOf(2), SpanOf(payload), [&](absl::Status status) { result = status; }));
    executor_.RunAll();
    ASSERT_TRUE(result.has_value() && !result->ok());
    EXPECT_EQ(std::memcmp(payload.data(), Zeros().data(), kPayload), 0);
  }
}

TEST_F(NvmeRecoveryTest, WhatIsReadForTheFirstTimeInALifeArrivesWhereItWasAskedFor) {
  const SlotId slot = Store(1);
  Restart();
  ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload));
  for (int time = 0; time < 2; ++time) EXPECT_TRUE(Read(slot, 1).ok()) << time;
}

TEST_F(NvmeRecoveryTest, BothCopiesDamagedStartsEmptyUnderANewId) {
  const SlotId slot = Store(1);
  const std::string id = tier_->device_id();
  Copy(0)[20] ^= std::byte{1};
  Copy(1)[4095] ^= std::byte{1};
  Start();
  EXPECT_NE(tier_->device_id(), id);
  const Scanned scanned = Scan();
  EXPECT_TRUE(scanned.status.ok());
  EXPECT_TRUE(scanned.records.empty()) << "blocks of the lost device must not come back";
  ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload));
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 1)));
}

TEST_F(NvmeRecoveryTest, AFileThatIsTooSmallIsRefused) {
  disk_ = testing::MakeFakeDisk(kMiB);
  const absl::Status status = TryStart();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("1048576"));
}

TEST_F(NvmeRecoveryTest, ADiskThatCannotBeReadIsUnavailable) {
  tier_.reset();
  file_->FailNow(true);
  EXPECT_TRUE(absl::IsUnavailable(NvmeTier::Open(file_.get(), &clock_).status()));
}

TEST_F(NvmeRecoveryTest, ATruncatedFileLosesOnlyWhatLayThere) {
  std::vector<SlotId> slots;
  while (tier_->GrowthBytes(kPayload, UINT64_MAX) != 0) slots.push_back(NewSlot());
  const SlotId early = slots.front(), late = slots.back();
  ASSERT_TRUE(Write(early, 1).ok());
  ASSERT_TRUE(Write(late, 2).ok());
  const uint64_t half = kNvmeDataStartBytes + 2 * kSegmentMinBytes;
  auto smaller = testing::MakeFakeDisk(half);
  std::memcpy(smaller->bytes.data(), file_->bytes().data(), half);
  disk_ = smaller;
  Start();
  EXPECT_FALSE(tier_->Adopt(kDomain, late, kPayload)) << "past the end";
  ASSERT_TRUE(tier_->Adopt(kDomain, early, kPayload));
  EXPECT_TRUE(Read(early, 1).ok());
  EXPECT_EQ(Scan().records.size(), 1u);

  // Grown back to its size by whoever preallocates it: the part that was cut off reads as zeros.
  auto grown = testing::MakeFakeDisk(kNvmeDataStartBytes + 4 * kSegmentMinBytes);
  std::memcpy(grown->bytes.data(), file_->bytes().data(), half);
  disk_ = grown;
  Start();
  ASSERT_TRUE(tier_->Adopt(kDomain, late, kPayload));
  EXPECT_TRUE(absl::IsDataLoss(Read(late, 2)));
}

TEST_F(NvmeRecoveryTest, AdoptedBlocksAreReadAndAccountedFor) {
  const SlotId first = NewSlot(), second = NewSlot();
  const absl::StatusOr<BlockHeader> header = Write(first, 1);
  ASSERT_TRUE(header.ok() && Write(second, 2).ok());
  Restart();
  ASSERT_TRUE(tier_->Adopt(kDomain, first, kPayload, header->generation));
  ASSERT_TRUE(tier_->Adopt(kOther, second, kPayload));  // a record of unknown generation
  EXPECT_FALSE(tier_->Adopt(kDomain, first, kPayload)) << "in use";
  EXPECT_FALSE(tier_->Adopt(kDomain, SlotId(second.value() + 1), kPayload));
  EXPECT_FALSE(tier_->Adopt(kDomain, SlotId::None(), kPayload));
  EXPECT_FALSE(tier_->Adopt(kDomain, first, 0));
  EXPECT_EQ(tier_->stats().used_bytes, 2 * kExtent);
  EXPECT_EQ(tier_->stats().granted_bytes, 2 * kExtent);
  EXPECT_TRUE(Read(first, 1).ok());
  EXPECT_TRUE(Read(second, 2).ok());
  Drop(second, kOther);
  EXPECT_EQ(tier_->stats().granted_bytes, kExtent);
  EXPECT_EQ(NewSlot(), second);
}

TEST_F(NvmeRecoveryTest, AStaleRecordIsFoundOutByTheGeneration) {
  const SlotId slot = NewSlot();
  const absl::StatusOr<BlockHeader> header = Write(slot, 1);
  ASSERT_TRUE(header.ok());
  Restart();
  ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload, header->generation + 1));
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 1)));
}

TEST_F(NvmeRecoveryTest, ScanFindsEveryBlockInBoundedBatches) {
  constexpr uint32_t kTiny = 4096;
  std::map<SlotId, uint64_t> stored;
  for (uint64_t i = 0; i < kRecoveryBatchMax + 100; ++i) stored[Store(i, kDomain, kTiny)] = i;
  for (uint64_t i = 5000; i < 5010; ++i) stored[Store(i)] = i;
  Restart();
  const Scanned scanned = Scan();
  EXPECT_TRUE(scanned.status.ok()) << scanned.status;
  EXPECT_LE(scanned.largest_batch, kRecoveryBatchMax);
  ASSERT_EQ(scanned.records.size(), stored.size());
  for (const CatalogRecord& record : scanned.records) {
    ASSERT_TRUE(stored.contains(record.slot));
    const uint64_t number = stored[record.slot];
    const uint32_t payload = record.header.identity.payload_bytes;
    ASSERT_EQ(record.header.identity.key, IdentityOf(number).key);
    ASSERT_TRUE(tier_->Adopt(kDomain, record.slot, payload, record.header.generation));
    if (number % 100 == 0) {
      EXPECT_TRUE(Read(record.slot, number, payload).ok());
    }
  }
}

TEST_F(NvmeRecoveryTest, ScanOfANewDeviceFindsNothing) {
  const Scanned scanned = Scan();
  EXPECT_TRUE(scanned.status.ok());
  EXPECT_TRUE(scanned.records.empty());
}

TEST_F(NvmeRecoveryTest, ScanLeavesOutWhatIsDamagedOrErased) {
  const SlotId fine = Store(1), damaged = Store(2), erased = Store(3);
  OnDisk(damaged)[50] ^= std::byte{1};
  ASSERT_TRUE(tier_->Erase(erased, [](const absl::Status&) {}));
  executor_.RunAll();
  Restart();
  const Scanned scanned = Scan();
  ASSERT_EQ(scanned.records.size(), 1u);
  EXPECT_EQ(scanned.records[0].slot, fine);
}

TEST_F(NvmeRecoveryTest, ScanEndsThoughTheDiskFails) {
  for (uint64_t i = 0; i < 10; ++i) Store(i);
  Restart();
  file_->FaultNext(DiskFault::kIoError, 5);
  const Scanned some = Scan();
  EXPECT_TRUE(absl::IsDataLoss(some.status)) << "a few unreadable headers are a few lost blocks, and told";
  Restart();
  file_->FaultNext(DiskFault::kIoError, 1 << 20);
  const Scanned none = Scan();
  EXPECT_TRUE(absl::IsDataLoss(none.status) || absl::IsUnavailable(none.status));
  EXPECT_TRUE(none.records.empty());
}

TEST_F(NvmeRecoveryTest, ScanGivesUpOnADeadDisk) {
  for (uint64_t i = 0; i < 2 * kScanErrorsMax; ++i) Store(i);
  Restart();
  // The segment's header is read, everything after it fails.
  std::optional<absl::Status> status;
  tier_->ScanHeaders([](const std::vector<CatalogRecord>&) {}, [&](absl::Status ended) { status = std::move(ended); });
  ASSERT_TRUE(executor_.RunOne());
  file_->FaultNext(DiskFault::kIoError, 1 << 20);
  executor_.RunAll();
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*status)) << *status;
  EXPECT_LE(file_->faults(), kScanErrorsMax + kScanReadsMax);
}

TEST_F(NvmeRecoveryTest, ScanGetsThroughANarrowQueue) {
  std::set<SlotId> stored;
  for (uint64_t i = 0; i < 50; ++i) stored.insert(Store(i));
  Restart();
  file_->SetQueueMax(1);
  const Scanned scanned = Scan();
  EXPECT_TRUE(scanned.status.ok());
  EXPECT_EQ(scanned.records.size(), stored.size());
}

// A client stores a payload that is a perfect header of another tenant's block, at the very place where a slot of
// another size will start. Nothing but the device's secret seed tells it from ours.
TEST_F(NvmeRecoveryTest, AHeaderForgedInsideAPayloadIsNotBelieved) {
  constexpr uint32_t kBig = 2 * 1024 * 1024;
  const SlotId big = NewSlot(kDomain, kBig);
  Mapping payload = PayloadOf(1, kBig);
  const uint64_t segment = kNvmeDataStartBytes;
  const uint64_t payload_at = uint64_t{big.value()} * kSlotAlignBytes + kNvmeHeaderBytes;
  size_t forged = 0;
  for (uint64_t at = segment + kNvmeHeaderBytes; at + kExtent <= payload_at + kBig; at += kExtent) {
    if (at < payload_at) continue;
    BlockHeader header;
    header.identity = IdentityOf(666);
    header.generation = UINT64_MAX;
    header.payload_xxh3 = PayloadChecksum({payload.data() + (at - payload_at) + kNvmeHeaderBytes, kPayload});
    EncodeBlockHeader(header, /*header_seed=*/0, SlotId(static_cast<uint32_t>(at / kSlotAlignBytes)),
                      {payload.data() + (at - payload_at), kNvmeHeaderBytes});
    ++forged;
  }
  ASSERT_GT(forged, 20u);
  bool written = false;
  ASSERT_TRUE(tier_->Write(big, IdentityOf(1, kBig), kCommitMs, kCommitMs, SpanOf(payload),
                           [&](const absl::StatusOr<BlockHeader>& header) { written = header.ok(); }));
  executor_.RunAll();
  ASSERT_TRUE(written);
  Drop(big);
  ASSERT_EQ(Store(2), big) << "the segment has the small size now";
  Restart();
  const Scanned scanned = Scan();
  ASSERT_EQ(scanned.records.size(), 1u);
  EXPECT_EQ(scanned.records[0].header.identity.key, IdentityOf(2).key);
}

// Power fails at any point of an open: one copy is whole, and the next open works.
TEST_F(NvmeRecoveryTest, APowerCutWhileTheSuperblockIsWrittenLosesNothing) {
  const SlotId slot = Store(1);
  const std::vector<std::byte> front_before(file_->bytes().begin(), file_->bytes().begin() + 2 * kNvmeHeaderBytes);
  Restart();
  const std::vector<std::byte> front_after(file_->bytes().begin(), file_->bytes().begin() + 2 * kNvmeHeaderBytes);
  const std::string id = tier_->device_id();
  // The second copy is written first. Cuts: nothing of it, half of it, all of it, half of the first one too.
  struct Cut {
    size_t first_bytes, second_bytes;
  };
  for (const Cut& cut : {Cut{0, 0}, Cut{0, 2048}, Cut{0, 4096}, Cut{32, 4096}, Cut{4095, 4096}}) {
    SCOPED_TRACE(cut.first_bytes + cut.second_bytes);
    file_->CutPower();
    const auto bytes = file_->bytes();
    std::copy(front_before.begin(), front_before.end(), bytes.begin());
    std::copy_n(front_after.begin(), cut.first_bytes, bytes.begin());
    std::copy_n(front_after.begin() + kNvmeHeaderBytes, cut.second_bytes, bytes.begin() + kNvmeHeaderBytes);
    Start();
    EXPECT_EQ(tier_->device_id(), id);
    ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload));
    EXPECT_TRUE(Read(slot, 1).ok());
  }
}

}  // namespace
}  // namespace kvartal::tier
