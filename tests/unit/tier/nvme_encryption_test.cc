// Blocks of a tenant whose policy wants them encrypted: what is on the disk, and what of it is ever delivered.
#include <functional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "daemon/cipher/tenant_cipher.h"
#include "tests/unit/tier/nvme_tier_fixture.h"

namespace kvartal::tier {
namespace {

class NvmeEncryptionTest : public NvmeTierFixture {
 protected:
  NvmeEncryptionTest() {
    SetKeys("1 " + std::string(64, 'a') + "\n");
    salt_.fill(std::byte{0x5a});
    Encrypt(kDomain, "red");
  }

  void SetKeys(const std::string& text) {
    const auto keys = cipher::NodeKeys::Parse(std::as_bytes(std::span(text)));
    ASSERT_TRUE(keys.ok()) << keys.status();
    ring_->Set(*keys);
  }
  void Encrypt(DomainId domain, const std::string& uid, bool required = true) {
    tier_->SetCipher(domain, std::make_shared<cipher::TenantCipher>(ring_, salt_, uid), required);
  }
  // Of the pages of a payload: those of which the disk holds a part, wherever.
  size_t PlainPagesOf(uint64_t number) {
    const Mapping payload = PayloadOf(number);
    const std::string_view disk(reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size());
    size_t found = 0;
    for (size_t page = 0; page < payload.size(); page += kSlotAlignBytes) {
      size_t at = page;
      while (payload.data()[at] == std::byte{0}) ++at;  // what is unused is zeros: a search for one would take long
      const std::string_view part(reinterpret_cast<const char*>(payload.data()) + at, 16);
      found += disk.find(part) != std::string_view::npos;
    }
    return found;
  }
  // As somebody would who has the disk, and so the header seed.
  void Reseal(SlotId slot, const std::function<void(BlockHeader*)>& change) {
    const std::span<std::byte> page = OnDisk(slot).first(kNvmeHeaderBytes);
    const uint64_t seed = DecodeSuperblock(file_->bytes().first(kNvmeHeaderBytes))->header_seed;
    absl::StatusOr<BlockHeader> header = DecodeBlockHeader(page, seed, slot);
    ASSERT_TRUE(header.ok()) << header.status();
    change(&*header);
    EncodeBlockHeader(*header, seed, slot, page);
  }

  const std::shared_ptr<cipher::KeyRing> ring_ = std::make_shared<cipher::KeyRing>();
  cipher::Salt salt_{};
};

TEST_F(NvmeEncryptionTest, WhatIsWrittenIsReadAndIsNowhereOnTheDiskInTheClear) {
  const SlotId slot = NewSlot();
  const absl::StatusOr<BlockHeader> header = Write(slot, 7);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->seal.key_id, 1u);
  EXPECT_EQ(header->payload_xxh3, 0u) << "a sum of the plain bytes would tell of them";
  EXPECT_EQ(PlainPagesOf(7), 0u);
  EXPECT_TRUE(Read(slot, 7).ok());
  const SlotId plain = Store(8, kOther);
  EXPECT_EQ(PlainPagesOf(8), kPayload / kSlotAlignBytes) << "the control: another tenant's policy asks for nothing";
  EXPECT_TRUE(Read(plain, 8).ok());
}

TEST_F(NvmeEncryptionTest, TheSlotItIsWrittenFromKeepsItsBytes) {
  const Mapping payload = PayloadOf(7), before = PayloadOf(7);
  bool done = false;
  ASSERT_TRUE(tier_->Write(NewSlot(), IdentityOf(7), kCommitMs, kCommitMs, SpanOf(payload),
                           [&](const absl::StatusOr<BlockHeader>& header) { done = header.ok(); }));
  executor_.RunAll();
  EXPECT_TRUE(done);
  EXPECT_EQ(std::memcmp(payload.data(), before.data(), kPayload), 0);
}

TEST_F(NvmeEncryptionTest, ARestartReadsWithTheSameKeyAndSalt) {
  const SlotId slot = Store(7);
  Restart();
  Encrypt(kDomain, "red");
  ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload));
  EXPECT_TRUE(Read(slot, 7).ok());
}

TEST_F(NvmeEncryptionTest, ItIsKnownWithoutAReadWhetherABlockLiesAsItsPolicyAsksByNow) {
  const SlotId sealed = Store(7), clear = Store(8, kOther);
  EXPECT_EQ(tier_->SecrecyOf(sealed), Secrecy::kAsAsked);
  EXPECT_EQ(tier_->SecrecyOf(clear), Secrecy::kAsAsked);
  Encrypt(kOther, "blue");
  EXPECT_EQ(tier_->SecrecyOf(clear), Secrecy::kInTheClear);
  Encrypt(kDomain, "red", false);
  EXPECT_EQ(tier_->SecrecyOf(sealed), Secrecy::kAsAsked) << "more than is asked for";
  SetKeys("2 " + std::string(64, 'b') + "\n");
  EXPECT_EQ(tier_->SecrecyOf(sealed), Secrecy::kKeyGone);
  Restart();
  Encrypt(kDomain, "red");
  ASSERT_TRUE(tier_->Adopt(kDomain, sealed, kPayload, 0, 1));
  EXPECT_EQ(tier_->SecrecyOf(sealed), Secrecy::kKeyGone);
  SetKeys("1 " + std::string(64, 'a') + "\n");
  EXPECT_EQ(tier_->SecrecyOf(sealed), Secrecy::kAsAsked);
}

TEST_F(NvmeEncryptionTest, AFlippedBitAnywhereIsAMissAndNothingOfItIsLeftInTheSlot) {
  const SlotId slot = Store(7);
  const std::vector<std::byte> good(OnDisk(slot).begin(), OnDisk(slot).end());
  const size_t places[] = {kNvmeHeaderBytes, kNvmeHeaderBytes + kPayload / 2, kNvmeHeaderBytes + kPayload - 1};
  for (const size_t at : places) {
    OnDisk(slot)[at] ^= std::byte{4};
    const Mapping payload = Zeros();
    std::optional<absl::Status> result;
    ASSERT_TRUE(tier_->Read(slot, IdentityOf(7), SpanOf(payload), [&](absl::Status status) { result = status; }));
    executor_.RunAll();
    EXPECT_TRUE(absl::IsDataLoss(*result)) << at;
    EXPECT_EQ(std::memcmp(payload.data(), Zeros().data(), kPayload), 0) << at;
    std::copy(good.begin(), good.end(), OnDisk(slot).begin());
  }
  EXPECT_EQ(tier_->counters().checksum_mismatches, std::size(places));
  EXPECT_EQ(tier_->counters().read_errors, 0u) << "the device did what it was asked";
  EXPECT_TRUE(Read(slot, 7).ok());
}

// With the header's own checksum made right again each time: it is no secret to who has the disk.
TEST_F(NvmeEncryptionTest, EveryFieldOfTheHeaderIsBoundToThePayload) {
  const SlotId slot = Store(7);
  const std::vector<std::byte> good(OnDisk(slot).begin(), OnDisk(slot).end());
  const std::function<void(BlockHeader*)> changes[] = {
      [](BlockHeader* header) { header->seal.tag[0] ^= std::byte{1}; },
      [](BlockHeader* header) { header->seal.random[31] ^= std::byte{1}; },
      [](BlockHeader* header) { ++header->first_commit_ms; },
      [](BlockHeader* header) { ++header->last_access_ms; },
      [](BlockHeader* header) { header->identity.depth ^= 1; },
      [](BlockHeader* header) { header->identity.parent.bytes[0] ^= 1; },
      [](BlockHeader* header) { header->payload_xxh3 = 1; },
  };
  for (const auto& change : changes) {
    Reseal(slot, change);
    EXPECT_TRUE(absl::IsDataLoss(Read(slot, 7)));
    std::copy(good.begin(), good.end(), OnDisk(slot).begin());
  }
  EXPECT_EQ(tier_->counters().checksum_mismatches, std::size(changes)) << "each was found by the tag alone";
  // After a restart the tier does not know the generation: an older block of the same key must not pass for this one.
  Restart();
  Encrypt(kDomain, "red");
  ASSERT_TRUE(tier_->Adopt(kDomain, slot, kPayload));
  Reseal(slot, [](BlockHeader* header) { ++header->generation; });
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 7)));
}

TEST_F(NvmeEncryptionTest, ABlockThatWasMovedIsAMiss) {
  const SlotId slot = Store(7), other = Store(8);
  const uint64_t seed = DecodeSuperblock(file_->bytes().first(kNvmeHeaderBytes))->header_seed;
  const absl::StatusOr<BlockHeader> header = DecodeBlockHeader(OnDisk(slot).first(kNvmeHeaderBytes), seed, slot);
  ASSERT_TRUE(header.ok());
  std::copy(OnDisk(slot).begin(), OnDisk(slot).end(), OnDisk(other).begin());
  EncodeBlockHeader(*header, seed, other, OnDisk(other).first(kNvmeHeaderBytes));
  Restart();
  Encrypt(kDomain, "red");
  ASSERT_TRUE(tier_->Adopt(kDomain, other, kPayload));
  EXPECT_TRUE(absl::IsDataLoss(Read(other, 7)));
  EXPECT_EQ(tier_->counters().checksum_mismatches, 1u);
}

TEST_F(NvmeEncryptionTest, AnotherTenantsBlockInTheSlotIsAMissEvenUnderOnesOwnHeader) {
  Encrypt(kOther, "blue");
  const SlotId red = Store(7), blue = Store(7, kOther);
  std::copy(OnDisk(blue).begin() + kNvmeHeaderBytes, OnDisk(blue).end(), OnDisk(red).begin() + kNvmeHeaderBytes);
  EXPECT_TRUE(absl::IsDataLoss(Read(red, 7)));
  // And with everything that blue's header says about how it was encrypted.
  cipher::BlockSeal seal_of_blue;
  Reseal(blue, [&](const BlockHeader* header) { seal_of_blue = header->seal; });
  Reseal(red, [&](BlockHeader* header) { header->seal = seal_of_blue; });
  EXPECT_TRUE(absl::IsDataLoss(Read(red, 7)));
  EXPECT_EQ(tier_->counters().checksum_mismatches, 2u);
  EXPECT_TRUE(Read(blue, 7).ok());
}

TEST_F(NvmeEncryptionTest, ABlockInTheClearIsNotTakenForOneOfATenantThatEncrypts) {
  tier_->SetCipher(kDomain, nullptr, false);
  const SlotId slot = Store(7);
  Encrypt(kDomain, "red");
  EXPECT_TRUE(absl::IsDataLoss(Read(slot, 7)));
  EXPECT_EQ(tier_->counters().header_mismatches, 1u);
}

TEST_F(NvmeEncryptionTest, APolicyThatAsksForItNoMoreLeavesWhatIsThereReadable) {
  const SlotId slot = Store(7);
  Encrypt(kDomain, "red", false);
  EXPECT_TRUE(Read(slot, 7).ok());
  const SlotId plain = Store(8);
  EXPECT_EQ(PlainPagesOf(8), kPayload / kSlotAlignBytes);
  EXPECT_TRUE(Read(plain, 8).ok());
}

TEST_F(NvmeEncryptionTest, RotationWritesUnderTheNewestAndReadsUnderWhatIsThere) {
  const SlotId first = Store(7);
  SetKeys("1 " + std::string(64, 'a') + "\n2 " + std::string(64, 'b'));
  const SlotId second = NewSlot();
  EXPECT_EQ(Write(second, 8)->seal.key_id, 2u);
  EXPECT_TRUE(Read(first, 7).ok());
  SetKeys("2 " + std::string(64, 'b'));
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(first, 7)));
  EXPECT_EQ(tier_->counters().keys_missing, 1u);
  EXPECT_TRUE(Read(second, 8).ok());
}

TEST_F(NvmeEncryptionTest, WithoutAKeyNothingIsWrittenAndTheDeviceIsNotBlamed) {
  const SlotId slot = NewSlot();
  file_->Hold();
  const Mapping payload = PayloadOf(7);
  std::optional<absl::StatusOr<BlockHeader>> result;
  ASSERT_TRUE(tier_->MayWrite(kDomain));
  ASSERT_TRUE(tier_->Write(slot, IdentityOf(7), kCommitMs, kCommitMs, SpanOf(payload),
                           [&](absl::StatusOr<BlockHeader> header) { result = std::move(header); }));
  SetKeys("");  // while it waits for the disk
  EXPECT_FALSE(tier_->MayWrite(kDomain));
  file_->Release();
  executor_.RunAll();
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition(result->status())) << result->status();
  EXPECT_EQ(PlainPagesOf(7), 0u);
  EXPECT_EQ(tier_->counters().write_errors, 0u);
  EXPECT_EQ(tier_->device_state(), DeviceState::kHealthy);
  Drop(slot);
  EXPECT_EQ(tier_->counters().quarantined_slots, 0u);
  EXPECT_TRUE(tier_->MayWrite(kOther));
}

TEST_F(NvmeEncryptionTest, AMoveWithinTheDeviceEncryptsAnew) {
  const SlotId from = Store(7), to = NewSlot();
  std::optional<absl::StatusOr<BlockHeader>> copied;
  SetKeys("1 " + std::string(64, 'a') + "\n2 " + std::string(64, 'b'));
  tier_->Copy(from, to, IdentityOf(7), kCommitMs, kCommitMs + 5,
              [&](absl::StatusOr<BlockHeader> header) { copied = std::move(header); });
  executor_.RunAll();
  ASSERT_TRUE(copied.has_value() && copied->ok());
  EXPECT_EQ((*copied)->seal.key_id, 2u);
  EXPECT_TRUE(Read(to, 7).ok());
  EXPECT_EQ(PlainPagesOf(7), 0u);
}

// Who cannot decrypt finds a page of a later version: a miss, and nothing worse.
TEST_F(NvmeEncryptionTest, OnlyTheHeaderOfAnEncryptedBlockHasALaterVersion) {
  const SlotId encrypted = Store(7), plain = Store(8, kOther);
  EXPECT_EQ(OnDisk(encrypted)[8], std::byte{2});
  EXPECT_EQ(OnDisk(plain)[8], std::byte{1});
  EXPECT_EQ(file_->bytes()[8], std::byte{1});
  const Scanned scanned = Scan();
  EXPECT_TRUE(scanned.status.ok());
  EXPECT_EQ(scanned.records.size(), 2u) << "a lost catalog is rebuilt from both";
}

}  // namespace
}  // namespace kvartal::tier
