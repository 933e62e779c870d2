// The tier on a real file with its disk threads: alignment, O_DIRECT where there is some, and a restart.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/base/mapping.h"
#include "daemon/base/units.h"
#include "daemon/device/block_file.h"
#include "daemon/tier/nvme_tier.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {
namespace {

constexpr uint32_t kPayload = 2560 * 1024;
constexpr DomainId kDomain{0};

class NvmeRealFileTest : public ::testing::Test {
 protected:
  NvmeRealFileTest() {
    std::string pattern = ::testing::TempDir() + "/kvartal-nvme-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    Open();
  }
  ~NvmeRealFileTest() override {
    tier_.reset();
    file_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void Open() {
    tier_.reset();
    file_.reset();
    auto file = device::OpenBlockFile(
        {.path = folder_ + "/nvme", .size_bytes = 64 * kMiB, .depth = 4, .engine = std::nullopt}, &executor_);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = std::move(file->file);
    auto tier = NvmeTier::Open(file_.get(), &clock_);
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
  }
  static BlockIdentity IdentityOf(uint8_t number) {
    BlockIdentity identity;
    identity.key.bytes[0] = number;
    identity.payload_bytes = kPayload;
    identity.shard_bytes = kPayload;
    return identity;
  }
  SlotId NewSlot() {
    const uint64_t growth = tier_->GrowthBytes(kPayload, UINT64_MAX);
    tier_->Grow(kDomain, kPayload, growth, [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
    return tier_->Take(kDomain, kPayload);
  }
  absl::Status Read(SlotId slot, uint8_t number, Mapping* into) {
    std::optional<absl::Status> result;
    EXPECT_TRUE(tier_->Read(slot, IdentityOf(number), {into->data(), into->size()},
                            [&](absl::Status status) { result = std::move(status); }));
    executor_.RunUntil([&] { return result.has_value(); });
    return *result;
  }

  SystemClock clock_;
  testing::ManualExecutor executor_;
  std::string folder_;
  std::unique_ptr<device::BlockFile> file_;
  std::unique_ptr<NvmeTier> tier_;
};

TEST_F(NvmeRealFileTest, BlocksAreWrittenReadErasedAndSurviveARestart) {
  constexpr uint8_t kBlocks = 12;
  std::vector<Mapping> payloads;
  std::vector<SlotId> slots;
  std::vector<uint64_t> generations(kBlocks);
  int written = 0;
  for (uint8_t i = 0; i < kBlocks; ++i) {
    payloads.push_back(*Mapping::Anonymous(kPayload));
    std::memset(payloads[i].data(), i + 1, kPayload);
    slots.push_back(NewSlot());
    ASSERT_TRUE(tier_->Write(slots[i], IdentityOf(i), 1, 1, {payloads[i].data(), kPayload},
                             [&, i](const absl::StatusOr<BlockHeader>& header) {
                               ASSERT_TRUE(header.ok()) << header.status();
                               generations[i] = header->generation;
                               ++written;
                             }));
  }
  executor_.RunUntil([&] { return written == kBlocks; });

  std::optional<absl::Status> erased;
  ASSERT_TRUE(tier_->Erase(slots[0], [&](absl::Status status) { erased = std::move(status); }));
  executor_.RunUntil([&] { return erased.has_value(); });
  EXPECT_TRUE(erased->ok()) << *erased;

  Open();
  Mapping target = *Mapping::Anonymous(kPayload);
  for (uint8_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(tier_->Adopt(kDomain, slots[i], kPayload, generations[i]));
    const absl::Status status = Read(slots[i], i, &target);
    if (i == 0) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_EQ(target.data()[kPayload - 1], std::byte{0}) << "erased is zeros on the disk";
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(std::memcmp(target.data(), payloads[i].data(), kPayload), 0);
  }

  Open();
  size_t found = 0;
  std::optional<absl::Status> scanned;
  tier_->ScanHeaders([&](const std::vector<CatalogRecord>& batch) { found += batch.size(); },
                     [&](absl::Status status) { scanned = std::move(status); });
  executor_.RunUntil([&] { return scanned.has_value(); });
  EXPECT_TRUE(scanned->ok());
  EXPECT_EQ(found, kBlocks - 1u);
}

// The block that a connector of vLLM was refused with: 3,098,112 bytes are no multiple of a page.
TEST_F(NvmeRealFileTest, ABlockThatIsNoMultipleOfAPageHasAPaddedPlace) {
  constexpr uint32_t kOdd = 3'098'112;
  constexpr uint32_t kPadded = (kOdd + 4095) / 4096 * 4096;
  const uint64_t growth = tier_->GrowthBytes(kOdd, UINT64_MAX);
  ASSERT_EQ(growth, kPadded + kNvmeHeaderBytes) << "what is charged is what is taken";
  tier_->Grow(kDomain, kOdd, growth, [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
  const SlotId slot = tier_->Take(kDomain, kOdd);
  BlockIdentity identity = IdentityOf(1);
  identity.payload_bytes = kPadded;
  identity.shard_bytes = kOdd;
  Mapping payload = *Mapping::Anonymous(kPadded);
  std::memset(payload.data(), 0x7E, kOdd);
  std::optional<absl::Status> written, read;
  ASSERT_TRUE(tier_->Write(slot, identity, 1, 1, {payload.data(), kPadded},
                           [&](const absl::StatusOr<BlockHeader>& header) { written = header.status(); }));
  executor_.RunUntil([&] { return written.has_value(); });
  ASSERT_TRUE(written->ok()) << *written;
  Mapping target = *Mapping::Anonymous(kPadded);
  ASSERT_TRUE(
      tier_->Read(slot, identity, {target.data(), kPadded}, [&](absl::Status status) { read = std::move(status); }));
  executor_.RunUntil([&] { return read.has_value(); });
  EXPECT_TRUE(read->ok()) << *read;
  EXPECT_EQ(std::memcmp(target.data(), payload.data(), kPadded), 0);
}

}  // namespace
}  // namespace kvartal::tier
