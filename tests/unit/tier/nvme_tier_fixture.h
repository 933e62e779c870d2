// A tier on a disk in memory, and blocks to put on it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/limits.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/tier/nvme_tier.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {

class NvmeTierFixture : public ::testing::Test {
 protected:
  static constexpr uint32_t kPayload = 64 * 1024;
  static constexpr uint64_t kExtent = kPayload + kNvmeHeaderBytes;
  static constexpr DomainId kDomain{1};
  static constexpr DomainId kOther{2};
  static constexpr int64_t kCommitMs = 1'700'000'000'000;

  explicit NvmeTierFixture(uint64_t disk_bytes = kNvmeDataStartBytes + 4 * kSegmentMinBytes)
      : disk_(testing::MakeFakeDisk(disk_bytes)) {
    Start();
  }

  absl::Status TryStart() {
    tier_.reset();
    file_.reset();
    auto file = testing::FakeBlockFile::Open(disk_, &executor_);
    EXPECT_TRUE(file.ok());
    file_ = *std::move(file);
    absl::StatusOr<std::unique_ptr<NvmeTier>> tier = NvmeTier::Open(file_.get(), &clock_);
    if (!tier.ok()) return tier.status();
    tier_ = *std::move(tier);
    return absl::OkStatus();
  }
  void Start() {
    const absl::Status status = TryStart();
    ASSERT_TRUE(status.ok()) << status;
  }
  // As after kill -9: what is under way never happens.
  void Restart() {
    file_->CutPower();
    Start();
  }

  static BlockIdentity IdentityOf(uint64_t number, uint32_t payload_bytes = kPayload) {
    BlockIdentity identity;
    std::memcpy(identity.key.bytes.data(), &number, sizeof(number));
    identity.key.bytes[31] = 1;
    identity.digest.bytes[0] = 2;
    identity.owner[0] = 3;
    identity.depth = static_cast<uint32_t>(number);
    identity.payload_bytes = payload_bytes;
    identity.tokens_per_block = 16;
    identity.shard_bytes = payload_bytes;
    return identity;
  }
  static std::span<std::byte> SpanOf(const Mapping& bytes) { return {bytes.data(), bytes.size()}; }
  static Mapping Zeros(uint32_t payload_bytes = kPayload) { return *Mapping::Anonymous(payload_bytes); }
  static Mapping PayloadOf(uint64_t number, uint32_t payload_bytes = kPayload) {
    Mapping payload = *Mapping::Anonymous(payload_bytes);
    std::mt19937_64 random(number + 1);
    for (size_t at = 0; at < payload_bytes; at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(payload.data() + at, &word, sizeof(word));
    }
    return payload;
  }

  SlotId NewSlot(DomainId domain = kDomain, uint32_t payload_bytes = kPayload) {
    const uint64_t growth = tier_->GrowthBytes(payload_bytes, UINT64_MAX);
    if (growth == 0) return SlotId::None();
    std::optional<absl::Status> grown;
    tier_->Grow(domain, payload_bytes, growth, [&](absl::Status status) { grown = std::move(status); });
    EXPECT_TRUE(grown.has_value() && grown->ok());
    return tier_->Take(domain, payload_bytes);
  }
  absl::StatusOr<BlockHeader> Write(SlotId slot, uint64_t number, uint32_t payload_bytes = kPayload) {
    const Mapping payload = PayloadOf(number, payload_bytes);
    std::optional<absl::StatusOr<BlockHeader>> result;
    EXPECT_TRUE(tier_->Write(slot, IdentityOf(number, payload_bytes), kCommitMs, kCommitMs + 1, SpanOf(payload),
                             [&](absl::StatusOr<BlockHeader> header) { result = std::move(header); }));
    executor_.RunAll();
    EXPECT_TRUE(result.has_value());
    return result.value_or(absl::UnknownError("never done"));
  }
  // OK only with the right bytes.
  absl::Status Read(SlotId slot, uint64_t number, uint32_t payload_bytes = kPayload) {
    const Mapping payload = Zeros(payload_bytes);
    std::optional<absl::Status> result;
    EXPECT_TRUE(tier_->Read(slot, IdentityOf(number, payload_bytes), SpanOf(payload),
                            [&](absl::Status status) { result = std::move(status); }));
    executor_.RunAll();
    EXPECT_TRUE(result.has_value());
    if (result.has_value() && result->ok()) {
      const Mapping expected = PayloadOf(number, payload_bytes);
      EXPECT_EQ(std::memcmp(payload.data(), expected.data(), payload_bytes), 0) << "wrong bytes were delivered";
    }
    return result.value_or(absl::UnknownError("never done"));
  }
  SlotId Store(uint64_t number, DomainId domain = kDomain, uint32_t payload_bytes = kPayload) {
    const SlotId slot = NewSlot(domain, payload_bytes);
    EXPECT_TRUE(slot.valid());
    EXPECT_TRUE(Write(slot, number, payload_bytes).ok());
    return slot;
  }
  void Drop(SlotId slot, DomainId domain = kDomain) {
    tier_->Give(domain, slot);
    tier_->Shrink(domain, 0, [] {});
  }
  std::span<std::byte> OnDisk(SlotId slot, uint32_t payload_bytes = kPayload) {
    return file_->bytes().subspan(uint64_t{slot.value()} * kSlotAlignBytes, kNvmeHeaderBytes + payload_bytes);
  }
  struct Scanned {
    std::vector<CatalogRecord> records;
    size_t largest_batch = 0;
    absl::Status status = absl::UnknownError("never done");
  };
  Scanned Scan() {
    Scanned out;
    tier_->ScanHeaders(
        [&](std::vector<CatalogRecord> batch) {
          out.largest_batch = std::max(out.largest_batch, batch.size());
          out.records.insert(out.records.end(), batch.begin(), batch.end());
        },
        [&](absl::Status status) { out.status = std::move(status); });
    executor_.RunAll();
    return out;
  }

  ManualClock clock_;
  testing::ManualExecutor executor_;
  std::shared_ptr<testing::FakeDisk> disk_;
  std::unique_ptr<testing::FakeBlockFile> file_;
  std::unique_ptr<NvmeTier> tier_;
};

}  // namespace kvartal::tier
