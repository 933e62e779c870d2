// The tier on a disk that fails: a miss, a counter, never wrong bytes, never a hang.
#include <map>
#include <random>
#include <set>

#include "daemon/tier/nvme_tier.h"
#include "tests/unit/tier/nvme_tier_fixture.h"

namespace kvartal::tier {
namespace {

using testing::DiskFault;
using NvmeFaultTest = NvmeTierFixture;

TEST_F(NvmeFaultTest, ReadErrorIsUnavailableAndCounted) {
  const SlotId slot = Store(1);
  file_->FaultNext(DiskFault::kIoError);
  EXPECT_TRUE(absl::IsUnavailable(Read(slot, 1)));
  EXPECT_EQ(tier_->counters().read_errors, 1u);
  EXPECT_EQ(tier_->counters().header_mismatches, 0u);
  EXPECT_TRUE(Read(slot, 1).ok());
}

TEST_F(NvmeFaultTest, ShortReadIsUnavailable) {
  const SlotId slot = Store(1);
  file_->FaultNext(DiskFault::kShortTransfer);
  EXPECT_TRUE(absl::IsUnavailable(Read(slot, 1)));
  EXPECT_EQ(tier_->counters().read_errors, 1u);
}

TEST_F(NvmeFaultTest, FlippedBitsOnTheWayAreMisses) {
  const SlotId slot = Store(1);
  file_->FaultNext(DiskFault::kBitFlip);
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 1)));  // in the buffer of the read
  EXPECT_TRUE(Read(slot, 1).ok());
  file_->FaultNext(DiskFault::kBitFlip);
  ASSERT_TRUE(Write(slot, 1).ok());  // on the disk, unnoticed
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 1)));
  EXPECT_EQ(tier_->counters().header_mismatches + tier_->counters().checksum_mismatches, 2u);
}

TEST_F(NvmeFaultTest, TornWriteIsFoundAtTheRead) {
  for (uint64_t i = 0; i < 20; ++i) {
    const SlotId slot = Store(i);
    file_->FaultNext(DiskFault::kTornWrite);
    ASSERT_TRUE(Write(slot, 1000 + i).ok());
    EXPECT_TRUE(absl::IsDataLoss(Read(slot, 1000 + i))) << i;
  }
}

TEST_F(NvmeFaultTest, FailedWriteIsUnavailableAndItsSlotIsKeptOutOfUse) {
  ASSERT_TRUE(Store(1).valid());
  const SlotId slot = NewSlot();
  file_->FaultNext(DiskFault::kIoError);
  EXPECT_TRUE(absl::IsUnavailable(Write(slot, 2).status()));
  EXPECT_EQ(tier_->counters().write_errors, 1u);
  tier_->Give(kDomain, slot);
  EXPECT_EQ(tier_->EmptyBytes(kDomain), kExtent) << "still charged";
  EXPECT_NE(tier_->Take(kDomain, kPayload), slot);
  EXPECT_EQ(tier_->Shrink(kDomain, 0, [] {}), kExtent) << "and refunded like any other";
  EXPECT_EQ(tier_->counters().quarantined_slots, 1u);
  EXPECT_NE(NewSlot(), slot);
  EXPECT_NE(NewSlot(kOther), slot);
}

TEST_F(NvmeFaultTest, ASlotThatCannotBeReadIsKeptOutOfUseOnceItsBlockIsGivenUp) {
  const SlotId unreadable = Store(1), readable = Store(2), changed = Store(3);
  file_->FaultNext(DiskFault::kIoError, 2);
  EXPECT_FALSE(Read(unreadable, 1).ok());
  EXPECT_FALSE(Read(readable, 2).ok());
  EXPECT_TRUE(Read(readable, 2).ok()) << "it was not the place";
  file_->FaultNext(DiskFault::kBitFlip);
  EXPECT_TRUE(absl::IsDataLoss(Read(changed, 3))) << "which a client may bring about";
  Drop(unreadable);
  Drop(readable);
  Drop(changed);
  EXPECT_EQ(tier_->counters().quarantined_slots, 1u);
  std::set<SlotId> used;
  while (tier_->GrowthBytes(kPayload, UINT64_MAX) != 0) used.insert(NewSlot());
  EXPECT_FALSE(used.contains(unreadable));
  EXPECT_TRUE(used.contains(readable) && used.contains(changed));
}

TEST_F(NvmeFaultTest, QuarantineIsBounded) {
  std::vector<SlotId> failed;
  for (size_t i = 0; i < kQuarantinedSlotsMax + 3; ++i) {
    SlotId slot = NewSlot();
    if (!slot.valid()) {
      clock_.AdvanceMs(2 * kDeviceErrorWindowMs);
      slot = NewSlot();
    }
    ASSERT_TRUE(slot.valid());
    file_->FaultNext(DiskFault::kIoError);
    EXPECT_FALSE(Write(slot, i).ok());
    Drop(slot);
    failed.push_back(slot);
  }
  EXPECT_EQ(tier_->counters().quarantined_slots, kQuarantinedSlotsMax);
  clock_.AdvanceMs(2 * kDeviceErrorWindowMs);
  // The oldest three are back in use.
  std::map<SlotId, bool> seen;
  while (tier_->GrowthBytes(kPayload, UINT64_MAX) != 0) seen[NewSlot()] = true;
  for (size_t i = 0; i < failed.size(); ++i) EXPECT_EQ(seen.contains(failed[i]), i < 3) << i;
}

TEST_F(NvmeFaultTest, ManyErrorsStopNewBlocksAndTimeBringsThemBack) {
  const SlotId slot = Store(1);
  file_->FaultNext(DiskFault::kIoError, kDeviceErrorsMax);
  for (uint32_t i = 0; i < kDeviceErrorsMax; ++i) {
    EXPECT_TRUE(tier_->stats().healthy) << i;
    EXPECT_FALSE(Read(slot, 1).ok());
  }
  EXPECT_FALSE(tier_->stats().healthy);
  EXPECT_EQ(tier_->GrowthBytes(kPayload, UINT64_MAX), 0u);
  EXPECT_TRUE(Read(slot, 1).ok()) << "reads are still tried";
  EXPECT_FALSE(tier_->stats().healthy) << "one success is not enough";
  clock_.AdvanceMs(kDeviceErrorWindowMs + 1);
  EXPECT_TRUE(tier_->stats().healthy);
  EXPECT_EQ(tier_->GrowthBytes(kPayload, UINT64_MAX), kExtent);
}

TEST_F(NvmeFaultTest, AStreakOfSuccessesHealsToo) {
  const SlotId slot = Store(1);
  file_->FaultNext(DiskFault::kIoError, kDeviceErrorsMax);
  for (uint32_t i = 0; i < kDeviceErrorsMax; ++i) EXPECT_FALSE(Read(slot, 1).ok());
  for (uint32_t i = 0; i + 1 < kDeviceHealSuccesses; ++i) ASSERT_TRUE(Read(slot, 1).ok());
  EXPECT_FALSE(tier_->stats().healthy);
  ASSERT_TRUE(Read(slot, 1).ok());
  EXPECT_TRUE(tier_->stats().healthy);
}

TEST_F(NvmeFaultTest, ManyMoreErrorsTakeTheDeviceOfflineAndTimeBringsItBack) {
  const SlotId slot = Store(1);
  file_->FaultNext(DiskFault::kIoError, kDeviceErrorsOfflineMax);
  for (uint32_t i = 0; i < kDeviceErrorsOfflineMax; ++i) {
    EXPECT_EQ(tier_->device_state(), i < kDeviceErrorsMax ? DeviceState::kHealthy : DeviceState::kDegraded) << i;
    EXPECT_FALSE(Read(slot, 1).ok());
    clock_.AdvanceMs(kDeviceErrorWindowMs / kDeviceErrorsOfflineMax);
  }
  EXPECT_EQ(tier_->device_state(), DeviceState::kOffline);
  EXPECT_EQ(tier_->GrowthBytes(kPayload, UINT64_MAX), 0u);
  const uint64_t reads = file_->counts().reads;
  const Mapping target = Zeros();
  EXPECT_FALSE(tier_->Read(slot, IdentityOf(1), SpanOf(target), [](const absl::Status&) {}));
  executor_.RunAll();
  EXPECT_EQ(file_->counts().reads, reads) << "it is left alone";
  clock_.AdvanceMs(kDeviceErrorWindowMs + 1);
  EXPECT_EQ(tier_->device_state(), DeviceState::kHealthy);
  EXPECT_TRUE(Read(slot, 1).ok());
  // It has to earn nothing anew, and is not condemned for its past either.
  file_->FaultNext(DiskFault::kIoError);
  EXPECT_FALSE(Read(slot, 1).ok());
  EXPECT_EQ(tier_->device_state(), DeviceState::kHealthy);
}

TEST_F(NvmeFaultTest, AFullDiskIsAFailedWriteAndItsSlotIsKeptOutOfUse) {
  ASSERT_TRUE(Store(1).valid());
  const SlotId slot = NewSlot();
  file_->FaultNext(DiskFault::kNoSpace);
  EXPECT_TRUE(absl::IsUnavailable(Write(slot, 2).status()));
  Drop(slot);
  EXPECT_EQ(tier_->counters().quarantined_slots, 1u);
  EXPECT_NE(NewSlot(), slot);
}

TEST_F(NvmeFaultTest, RareErrorsAreForgiven) {
  const SlotId slot = Store(1);
  for (uint32_t i = 0; i < 4 * kDeviceErrorsMax; ++i) {
    file_->FaultNext(DiskFault::kIoError);
    EXPECT_FALSE(Read(slot, 1).ok());
    clock_.AdvanceMs(kDeviceErrorWindowMs / (kDeviceErrorsMax - 1) + 1);
    EXPECT_TRUE(tier_->stats().healthy) << i;
  }
}

TEST_F(NvmeFaultTest, FailedSegmentHeaderFailsTheWritesThatWaitedForIt) {
  const std::vector<SlotId> slots = {NewSlot(), NewSlot()};
  const Mapping payload = PayloadOf(1);
  std::vector<absl::Status> results;
  file_->FaultNext(DiskFault::kIoError);
  for (const SlotId slot : slots) {
    ASSERT_TRUE(tier_->Write(slot, IdentityOf(1), kCommitMs, kCommitMs, SpanOf(payload),
                             [&](const absl::StatusOr<BlockHeader>& header) { results.push_back(header.status()); }));
  }
  executor_.RunAll();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_TRUE(absl::IsUnavailable(results[0])) << results[0];
  EXPECT_TRUE(absl::IsUnavailable(results[1]));
  // The next write tries the header again.
  ASSERT_TRUE(Write(slots[0], 1).ok());
  EXPECT_EQ(tier_->counters().segment_headers_written, 1u);
  EXPECT_TRUE(Read(slots[0], 1).ok());
}

TEST_F(NvmeFaultTest, ATransferThatNeverCompletesHoldsOnlyItsSlot) {
  const SlotId slot = Store(1);
  const SlotId other = Store(2);
  const Mapping target = Zeros();
  absl::Status result = absl::UnknownError("never done");
  file_->FaultNext(DiskFault::kNeverCompletes);
  ASSERT_TRUE(
      tier_->Read(slot, IdentityOf(1), SpanOf(target), [&](absl::Status status) { result = std::move(status); }));
  executor_.RunAll();
  EXPECT_TRUE(absl::IsUnknown(result));
  EXPECT_TRUE(Read(other, 2).ok());
  file_->SetOverdue(1);
  EXPECT_FALSE(tier_->stats().healthy) << "a disk that hangs takes no new blocks";
  EXPECT_EQ(tier_->GrowthBytes(kPayload, UINT64_MAX), 0u);
  file_->FailLost();
  file_->SetOverdue(0);
  EXPECT_TRUE(absl::IsUnavailable(result)) << result;
  EXPECT_TRUE(tier_->stats().healthy);
  EXPECT_NE(tier_->GrowthBytes(kPayload, UINT64_MAX), 0u);
}

// Random faults against a model: a read may fail, it may never deliver what was not written.
TEST_F(NvmeFaultTest, RandomFaultsNeverYieldWrongBytes) {
  uint64_t lost = 0, fine = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    file_->SetFaultRates(
        {.io_error = 300, .short_transfer = 300, .torn_write = 300, .bit_flip = 300, .no_space = 200, .delayed = 500},
        seed);
    file_->SetReorder(true, seed);
    std::map<SlotId, uint64_t> held;
    uint64_t next = seed * 100000;
    for (int step = 0; step < 600; ++step) {
      clock_.AdvanceMs(kDeviceErrorWindowMs);  // the budget is another test's subject
      if (held.size() < 40 && random() % 2 == 0) {
        const SlotId slot = NewSlot(random() % 2 == 0 ? kDomain : kOther);
        if (!slot.valid()) continue;
        held[slot] = next;
        if (!Write(slot, next++).ok()) ++lost;
      } else if (!held.empty()) {
        auto it = held.begin();
        std::advance(it, random() % held.size());
        Read(it->first, it->second).ok() ? ++fine : ++lost;
      }
    }
    file_->SetFaultRates({}, 1);
    Restart();
  }
  EXPECT_GT(fine, 500u);
  EXPECT_GT(lost, 50u);
}

}  // namespace
}  // namespace kvartal::tier
