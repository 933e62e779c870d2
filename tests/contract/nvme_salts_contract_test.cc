// What every NvmeCatalog promises about salts, shown for the fake and for the real one.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "daemon/tier/nvme_catalog.h"
#include "tests/contract/catalog_calls.h"
#include "tests/support/fake_catalog.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::tier {
namespace {

OwnerSalt SaltOf(uint8_t owner, uint8_t byte, int64_t made_wall_ms = 1000) {
  OwnerSalt salt;
  salt.owner[0] = owner;
  salt.salt.fill(std::byte{byte});
  salt.made_wall_ms = made_wall_ms;
  return salt;
}

class NvmeSaltsContract : public ::testing::TestWithParam<bool> {
 protected:
  NvmeSaltsContract() { Reopen(); }

  void Reopen() {
    catalog_.reset();
    if (GetParam()) {
      auto opened = OpenRocksCatalog({.path = folder_.File("catalog"), .device_id = "d0"}, &executor_);
      ASSERT_TRUE(opened.ok()) << opened.status();
      catalog_ = *std::move(opened);
    } else {
      catalog_ = std::make_unique<testing::FakeCatalog>(&executor_, disk_);
    }
  }
  // The file cannot be made: a folder is in its place.
  void BreakSalts() {
    if (GetParam()) {
      std::filesystem::create_directory(folder_.File("catalog.salts"));
    } else {
      fake()->FailSalts(absl::UnavailableError("no file"));
    }
  }
  void MendSalts() {
    if (GetParam()) {
      std::filesystem::remove(folder_.File("catalog.salts"));
    } else {
      fake()->FailSalts(absl::OkStatus());
    }
  }
  testing::FakeCatalog* fake() { return static_cast<testing::FakeCatalog*>(catalog_.get()); }

  absl::Status Tombstone(uint8_t owner, int64_t before_ms) {
    std::optional<absl::Status> result;
    catalog_->PutTombstone(SaltOf(owner, 0).owner, before_ms, [&](absl::Status status) { result = std::move(status); });
    executor_.RunUntil([&] { return result.has_value(); });
    return *result;
  }
  void Flush() {
    std::optional<absl::Status> result;
    catalog_->Flush([&](absl::Status status) { result = std::move(status); });
    executor_.RunUntil([&] { return result.has_value(); });
    EXPECT_TRUE(result->ok()) << *result;
  }

  testing::ManualExecutor executor_;
  const testing::ScratchDir folder_;
  const std::shared_ptr<testing::CatalogDisk> disk_ = std::make_shared<testing::CatalogDisk>();
  std::unique_ptr<NvmeCatalog> catalog_;
};

INSTANTIATE_TEST_SUITE_P(All, NvmeSaltsContract, ::testing::Bool(),
                         [](const auto& given) { return given.param ? "Rocks" : "Fake"; });

TEST_P(NvmeSaltsContract, ASaltIsThereAtTheNextOpen) {
  EXPECT_TRUE(catalog_->salts().empty());
  catalog_->PutSalt(SaltOf(1, 0x11));
  catalog_->PutSalt(SaltOf(2, 0x22));
  catalog_->PutSalt(SaltOf(1, 0x33, 2000));
  Flush();
  Reopen();
  const std::vector<OwnerSalt> salts = catalog_->salts();
  ASSERT_EQ(salts.size(), 2u);
  for (const OwnerSalt& salt : salts) EXPECT_EQ(salt.salt, SaltOf(0, salt.owner[0] == 1 ? 0x33 : 0x22).salt);
}

TEST_P(NvmeSaltsContract, ATombstoneForgetsTheSaltThatWasMadeBeforeAndNoOther) {
  catalog_->PutSalt(SaltOf(1, 0x11));
  catalog_->PutSalt(SaltOf(2, 0x22));
  ASSERT_TRUE(Tombstone(1, 1000).ok());
  Reopen();
  EXPECT_EQ(catalog_->salts().size(), 2u);
  ASSERT_TRUE(Tombstone(1, 1001).ok());
  Reopen();
  ASSERT_EQ(catalog_->salts().size(), 1u);
  EXPECT_EQ(catalog_->salts()[0].owner, SaltOf(2, 0).owner);
}

TEST_P(NvmeSaltsContract, TheSaltThatComesAfterATombstoneStays) {
  catalog_->PutSalt(SaltOf(1, 0x11));
  std::optional<absl::Status> buried;
  catalog_->PutTombstone(SaltOf(1, 0).owner, 5000, [&](absl::Status status) { buried = std::move(status); });
  catalog_->PutSalt(SaltOf(1, 0x33, 5000));
  executor_.RunUntil([&] { return buried.has_value(); });
  ASSERT_TRUE(buried->ok());
  Flush();
  ASSERT_TRUE(Tombstone(1, 5000).ok()) << "the same removal, gone on with";
  Reopen();
  ASSERT_EQ(catalog_->salts().size(), 1u);
  EXPECT_EQ(catalog_->salts()[0].salt, SaltOf(0, 0x33).salt);
}

TEST_P(NvmeSaltsContract, ASaltThatCannotBeWrittenHoldsUpEncryptedBlocksAndNothingElse) {
  CatalogCalls calls(&executor_);
  CatalogRecord encrypted = RecordOf(2, 2);
  encrypted.header.seal.key_id = 1;
  BreakSalts();
  catalog_->PutSalt(SaltOf(1, 0x11));
  EXPECT_TRUE(calls.Put(catalog_.get(), RecordOf(1, 1)).ok());
  EXPECT_FALSE(calls.Put(catalog_.get(), encrypted).ok());
  EXPECT_TRUE(Tombstone(9, 1000).ok()) << "of a tenant that has no salt";
  EXPECT_TRUE(calls.Put(catalog_.get(), RecordOf(3, 3)).ok());
  MendSalts();
  // It is tried again in its own time.
  while (!calls.Put(catalog_.get(), encrypted).ok()) continue;
  Reopen();
  EXPECT_EQ(calls.Load(catalog_.get()).size(), 3u);
  ASSERT_EQ(catalog_->salts().size(), 1u);
  EXPECT_EQ(catalog_->salts()[0].salt, SaltOf(0, 0x11).salt);
}

TEST_P(NvmeSaltsContract, ASaltThatIsForgottenBeforeItCouldBeWrittenNeverIs) {
  BreakSalts();
  catalog_->PutSalt(SaltOf(1, 0x11));
  EXPECT_TRUE(Tombstone(1, 1001).ok());
  MendSalts();
  catalog_->PutSalt(SaltOf(2, 0x22));
  Flush();
  Reopen();
  ASSERT_EQ(catalog_->salts().size(), 1u);
  EXPECT_EQ(catalog_->salts()[0].owner, SaltOf(2, 0).owner);
}

// Of the real one: blocks are found by their headers then, and can be decrypted.
TEST(NvmeSaltsTest, SaltsOutliveALostCatalog) {
  testing::ManualExecutor executor;
  const testing::ScratchDir folder;
  const CatalogOptions options{.path = folder.File("catalog"), .device_id = "d0"};
  {
    auto catalog = OpenRocksCatalog(options, &executor);
    ASSERT_TRUE(catalog.ok());
    (*catalog)->PutSalt(SaltOf(1, 0x11));
  }
  std::filesystem::remove_all(options.path);
  auto catalog = OpenRocksCatalog(options, &executor);
  ASSERT_TRUE(catalog.ok());
  EXPECT_TRUE((*catalog)->incomplete());
  EXPECT_EQ((*catalog)->salts().size(), 1u);
}

}  // namespace
}  // namespace kvartal::tier
