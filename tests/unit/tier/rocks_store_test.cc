#include "daemon/tier/rocks_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "daemon/base/units.h"
#include "tests/support/manual_executor.h"

namespace kvartal::tier {
namespace {

// While it lives no file of this process can grow beyond `bytes`: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

class RocksStoreTest : public ::testing::Test {
 protected:
  RocksStoreTest() {
    std::string pattern = ::testing::TempDir() + "/kvartal-store-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options_ = {.path = folder_ + "/catalog", .device_id = "d0"};
  }
  ~RocksStoreTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::unique_ptr<RocksStore> Open() {
    auto store = RocksStore::Open(options_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  static CatalogRecord RecordOf(uint32_t slot) {
    CatalogRecord record;
    record.slot = SlotId(slot);
    record.header.identity.payload_bytes = 4096;
    record.header.generation = slot;
    return record;
  }
  static absl::Status PutMany(RocksStore* store, uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) store->Put(RecordOf(first + i));
    return store->Commit(false);
  }
  static size_t CountOf(RocksStore* store) {
    size_t count = 0;
    EXPECT_TRUE(store
                    ->Load([&](std::vector<CatalogRecord> batch) {
                      count += batch.size();
                      return true;
                    })
                    .ok());
    return count;
  }

  std::string folder_;
  CatalogOptions options_;
};

TEST_F(RocksStoreTest, AFullDiskFailsWritesAndAReopenMendsThem) {
  auto store = Open();
  ASSERT_TRUE(PutMany(store.get(), 1, 100).ok());
  absl::Status status;
  {
    const FullDisk full(16 * kKiB);
    for (uint32_t i = 0; i < 100 && status.ok(); ++i) status = PutMany(store.get(), 1000 + 100 * i, 100);
    EXPECT_FALSE(status.ok()) << "the test must be able to fail the disk";
    EXPECT_FALSE(PutMany(store.get(), 500, 1).ok()) << "it stays refused";
    EXPECT_FALSE(store->Sync().ok());
  }
  const absl::Status reopened = store->Reopen();
  ASSERT_TRUE(reopened.ok()) << reopened;
  ASSERT_TRUE(PutMany(store.get(), 200, 100).ok());
  store.reset();
  store = Open();
  EXPECT_FALSE(store->was_empty());
  EXPECT_GE(CountOf(store.get()), 200u);
}

TEST_F(RocksStoreTest, AReopenOnADiskThatIsStillFullFailsAndALaterOneWorks) {
  auto store = Open();
  ASSERT_TRUE(PutMany(store.get(), 1, 100).ok());
  {
    const FullDisk full(0);
    EXPECT_FALSE(PutMany(store.get(), 1000, 1).ok());
    EXPECT_FALSE(store->Reopen().ok());
    EXPECT_FALSE(PutMany(store.get(), 1000, 1).ok());
    EXPECT_FALSE(store->Sync().ok());
    EXPECT_FALSE(store->PutTombstone(OwnerUidHash{}, 1).ok());
    EXPECT_FALSE(store->Load([](const std::vector<CatalogRecord>&) { return true; }).ok());
  }
  ASSERT_TRUE(store->Reopen().ok());
  EXPECT_EQ(CountOf(store.get()), 100u);
  ASSERT_TRUE(PutMany(store.get(), 200, 100).ok());
  EXPECT_EQ(CountOf(store.get()), 200u);
}

TEST_F(RocksStoreTest, RecordsLostWhileRunningAreKnownToBeLostAtTheNextStart) {
  auto store = Open();
  ASSERT_TRUE(PutMany(store.get(), 1, 100).ok());
  std::filesystem::remove_all(options_.path);
  ASSERT_TRUE(store->Reopen().ok());
  ASSERT_TRUE(PutMany(store.get(), 200, 5).ok());
  store.reset();
  store = Open();
  EXPECT_TRUE(store->was_empty()) << "the first hundred are missing: the headers must be read";
  EXPECT_EQ(CountOf(store.get()), 5u) << "what is there is not thrown away";
  store.reset();
  EXPECT_FALSE(Open()->was_empty());
}

TEST_F(RocksStoreTest, CommitOfNothingIsFineAndDiscardForgets) {
  auto store = Open();
  EXPECT_TRUE(store->Commit(true).ok());
  store->Put(RecordOf(1));
  EXPECT_EQ(store->collected(), 1u);
  store->Discard();
  EXPECT_EQ(store->collected(), 0u);
  EXPECT_EQ(CountOf(store.get()), 0u);
}

// The whole catalog on a full disk: every Put ends, none is called safe that is not, the process lives.
TEST_F(RocksStoreTest, CatalogOnAFullDiskAnswersEveryPut) {
  testing::ManualExecutor executor;
  auto catalog = OpenRocksCatalog(options_, &executor);
  ASSERT_TRUE(catalog.ok());
  size_t asked = 0, stored = 0, failed = 0;
  {
    const FullDisk full(64 * kKiB);
    for (uint32_t i = 1; i <= 2000; ++i) {
      ASSERT_TRUE((*catalog)->Put(RecordOf(i), [&](const absl::Status& status) { ++(status.ok() ? stored : failed); }));
      ++asked;
      if (i % 50 == 0) executor.RunUntil([&] { return stored + failed == asked; });
    }
    bool flushed = false;
    (*catalog)->Flush([&](const absl::Status& status) {
      EXPECT_FALSE(status.ok());
      flushed = true;
    });
    executor.RunUntil([&] { return flushed; });
  }
  EXPECT_EQ(stored + failed, asked);
  EXPECT_GT(stored, 0u);
  EXPECT_GT(failed, 0u);
  catalog->reset();
  auto store = Open();
  EXPECT_GE(CountOf(store.get()), stored);
}

}  // namespace
}  // namespace kvartal::tier
