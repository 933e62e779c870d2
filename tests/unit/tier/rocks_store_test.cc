#include "daemon/tier/rocks_store.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "daemon/base/limits.h"
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

  std::filesystem::path LargestFile(const std::string& extension) const {
    std::filesystem::path largest;
    uint64_t most = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options_.path)) {
      if (entry.path().extension() != extension || entry.file_size() < most) continue;
      largest = entry.path();
      most = entry.file_size();
    }
    EXPECT_FALSE(largest.empty()) << extension;
    return largest;
  }
  static void FlipBit(const std::filesystem::path& path, uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 0x10));
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
  ASSERT_TRUE(store->MarkComplete().ok());
  store.reset();
  store = Open();
  EXPECT_FALSE(store->incomplete());
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
  ASSERT_TRUE(store->MarkComplete().ok()) << "of what was missing before, and that is another folder now";
  store.reset();
  store = Open();
  EXPECT_TRUE(store->incomplete()) << "the first hundred are missing: the headers must be read";
  EXPECT_EQ(CountOf(store.get()), 5u) << "what is there is not thrown away";
  store.reset();
  store = Open();
  EXPECT_TRUE(store->incomplete()) << "they were not read yet";
  ASSERT_TRUE(store->MarkComplete().ok());
  store.reset();
  EXPECT_FALSE(Open()->incomplete());
}

// What is owed is owed though the disk was full when it was to be written down.
TEST_F(RocksStoreTest, AnErasureThatCouldNotBeWrittenDownIsWrittenAtTheReopen) {
  const auto erasure = [](uint64_t id, uint64_t blocks) {
    ErasureRecord record;
    record.id = id;
    record.unzeroed_blocks = blocks;
    return record;
  };
  const auto owed = [](const RocksStore& store) {
    std::map<uint64_t, uint64_t> blocks;
    for (const ErasureRecord& record : store.Erasures()) blocks[record.id] = record.unzeroed_blocks;
    return blocks;
  };
  auto store = Open();
  for (const uint64_t id : {1, 2, 3}) store->PutErasure(erasure(id, 10 * id));
  ASSERT_TRUE(store->Commit(false).ok());
  {
    const FullDisk full(0);
    store->PutErasure(erasure(1, 11));
    store->EndErasure(2);
    EXPECT_FALSE(store->Commit(false).ok());
    // Nor what is put while it is closed.
    store->PutErasure(erasure(4, 40));
    store->Discard();
    EXPECT_FALSE(store->Reopen().ok());
  }
  ASSERT_TRUE(store->Reopen().ok());
  const std::map<uint64_t, uint64_t> expected = {{1, 11}, {3, 30}, {4, 40}};
  EXPECT_EQ(owed(*store), expected);
  store.reset();
  EXPECT_EQ(owed(*Open()), expected);
  // In a folder that is made anew, too.
  store = Open();
  std::filesystem::remove_all(options_.path);
  ASSERT_TRUE(store->Reopen().ok());
  EXPECT_EQ(owed(*store), expected);
}

// A record that outlives its block may take the place of another's in the next life.
TEST_F(RocksStoreTest, ADeleteThatCouldNotBeWrittenIsWrittenAtTheReopen) {
  auto store = Open();
  ASSERT_TRUE(PutMany(store.get(), 1, 100).ok());
  {
    const FullDisk full(0);
    store->Delete(SlotId(5));
    EXPECT_FALSE(store->Commit(false).ok());
    store->Delete(SlotId(6));
    store->Discard();
    EXPECT_FALSE(store->Reopen().ok());
  }
  ASSERT_TRUE(store->Reopen().ok());
  EXPECT_EQ(CountOf(store.get()), 98u);
  // Once, so that what comes there afterwards stays.
  ASSERT_TRUE(PutMany(store.get(), 5, 2).ok());
  ASSERT_TRUE(store->Reopen().ok());
  EXPECT_EQ(CountOf(store.get()), 100u);
}

TEST_F(RocksStoreTest, ALogCutAnywhereOrDamagedLeavesAPrefixOfWholeBatches) {
  constexpr uint32_t kBatches = 60, kInABatch = 10;
  {
    auto store = Open();
    for (uint32_t i = 0; i < kBatches; ++i) ASSERT_TRUE(PutMany(store.get(), 1 + i * kInABatch, kInABatch).ok());
  }
  const std::string whole = folder_ + "/whole";
  std::filesystem::rename(options_.path, whole);
  std::mt19937_64 random(7);
  size_t cut_short = 0, most = 0;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    std::filesystem::remove_all(options_.path);
    std::filesystem::copy(whole, options_.path, std::filesystem::copy_options::recursive);
    const std::filesystem::path log = LargestFile(".log");
    const uint64_t at = random() % std::filesystem::file_size(log);
    if (round % 2 == 0) {
      std::filesystem::resize_file(log, at);
    } else {
      FlipBit(log, at);
    }
    auto store = Open();
    std::set<uint32_t> slots;
    ASSERT_TRUE(store
                    ->Load([&](const std::vector<CatalogRecord>& records) {
                      for (const CatalogRecord& record : records) slots.insert(record.slot.value());
                      return true;
                    })
                    .ok());
    EXPECT_EQ(slots.size() % kInABatch, 0u) << "half a batch";
    if (!slots.empty()) {
      EXPECT_EQ(*slots.rbegin(), slots.size()) << "a hole";
    }
    cut_short += slots.size() < kBatches * kInABatch;
    most = std::max(most, slots.size());
  }
  EXPECT_GT(cut_short, 30u);
  EXPECT_GT(most, kBatches * kInABatch / 2);
}

TEST_F(RocksStoreTest, ADamagedTableIsToldAndSetAsideAndWhatWasErasedStaysSo) {
  constexpr uint32_t kRecords = 5000;
  OwnerUidHash owner{};
  owner[0] = 9;
  {
    auto store = Open();
    ASSERT_TRUE(PutMany(store.get(), 1, kRecords).ok());
    ASSERT_TRUE(store->PutTombstone(owner, 77).ok());
  }
  Open().reset();  // what the log holds becomes a table
  const std::filesystem::path table = LargestFile(".sst");
  FlipBit(table, std::filesystem::file_size(table) / 2);
  auto store = Open();
  size_t count = 0;
  const absl::Status loaded = store->Load([&](const std::vector<CatalogRecord>& records) {
    count += records.size();
    return true;
  });
  EXPECT_TRUE(absl::IsDataLoss(loaded)) << loaded;
  EXPECT_LT(count, kRecords);
  EXPECT_FALSE(PutMany(store.get(), 1, 1).ok()) << "closed";
  ASSERT_TRUE(store->Reopen().ok());
  EXPECT_EQ(CountOf(store.get()), 0u);
  EXPECT_TRUE(std::filesystem::exists(options_.path + ".corrupt-1"));
  CatalogRecord erased = RecordOf(3);
  erased.header.identity.owner = owner;
  erased.header.first_commit_ms = 76;
  store->Put(erased);
  ASSERT_TRUE(store->Commit(false).ok());
  store.reset();
  store = Open();
  EXPECT_TRUE(store->incomplete()) << "the headers are to be read";
  size_t condemned = 0;
  ASSERT_TRUE(store
                  ->Load([&](const std::vector<CatalogRecord>& records) {
                    for (const CatalogRecord& record : records) condemned += record.condemned;
                    return true;
                  })
                  .ok());
  EXPECT_EQ(condemned, 1u) << "the tombstone went into the new one";
}

// The engine asks again for what it is told of.
TEST_F(RocksStoreTest, TimesThatCouldNotBeWrittenAreToldOf) {
  testing::ManualExecutor executor;
  auto catalog = OpenRocksCatalog(options_, &executor);
  ASSERT_TRUE(catalog.ok());
  std::optional<absl::Status> put, full, closed;
  ASSERT_TRUE((*catalog)->Put(RecordOf(1), [&](absl::Status status) { put = std::move(status); }));
  executor.RunUntil([&] { return put.has_value(); });
  ASSERT_TRUE(put->ok());
  const FullDisk disk(0);
  ASSERT_TRUE((*catalog)->Refresh(SlotId(1), {.pinned_until_s = 7}, [&](absl::Status status) { full = status; }));
  executor.RunUntil([&] { return full.has_value(); });
  EXPECT_FALSE(full->ok());
  ASSERT_TRUE((*catalog)->Refresh(SlotId(1), {.pinned_until_s = 7}, [&](absl::Status status) { closed = status; }));
  executor.RunUntil([&] { return closed.has_value(); });
  EXPECT_FALSE(closed->ok());
}

TEST_F(RocksStoreTest, ATombstoneThatCouldNotBeWrittenHoldsAndIsWrittenAtTheReopen) {
  OwnerUidHash owner{}, other{};
  owner[0] = 9;
  other[0] = 8;
  auto store = Open();
  CatalogRecord dropped = RecordOf(1);
  dropped.header.identity.owner = owner;
  store->Put(dropped);
  store->Put(RecordOf(2));
  ASSERT_TRUE(store->Commit(false).ok());
  {
    const FullDisk full(0);
    EXPECT_FALSE(store->PutTombstone(owner, 77).ok());
    EXPECT_FALSE(store->PutTombstone(other, 78).ok()) << "it is closed by now";
  }
  ASSERT_TRUE(store->Reopen().ok());
  std::map<uint32_t, bool> condemned;
  ASSERT_TRUE(store
                  ->Load([&](const std::vector<CatalogRecord>& batch) {
                    for (const CatalogRecord& record : batch) condemned[record.slot.value()] = record.condemned;
                    return true;
                  })
                  .ok());
  EXPECT_EQ(condemned, (std::map<uint32_t, bool>{{1, true}, {2, false}}));
  store.reset();
  EXPECT_EQ(Open()->tombstones(), (std::map<OwnerUidHash, int64_t>{{owner, 77}, {other, 78}}));
}

// An earlier build left it: its records have no number of a key.
TEST_F(RocksStoreTest, ACatalogOfTheFirstVersionIsKeptAndTheHeadersAreRead) {
  OwnerUidHash owner{};
  owner[0] = 9;
  ErasureRecord erasure;
  erasure.id = 3;
  {
    auto store = Open();
    ASSERT_TRUE(PutMany(store.get(), 5, 1).ok());
    store->PutErasure(erasure);
    ASSERT_TRUE(store->PutTombstone(owner, 77).ok());
    ASSERT_TRUE(store->MarkComplete().ok());
  }
  {
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), options_.path, &opened).ok());
    const std::unique_ptr<rocksdb::DB> database(opened);
    const std::string slot_key("s\0\0\0\5", 5);
    for (const std::string& key : {std::string("m"), slot_key}) {
      std::string value;
      ASSERT_TRUE(database->Get(rocksdb::ReadOptions(), key, &value).ok());
      value[0] = 1;
      if (key == slot_key) value.resize(kBlockRecordBytes - sizeof(uint32_t));
      ASSERT_TRUE(database->Put(rocksdb::WriteOptions(), key, value).ok());
    }
  }
  for (const bool marked : {false, true}) {
    auto store = Open();
    EXPECT_EQ(store->incomplete(), !marked);
    EXPECT_EQ(CountOf(store.get()), 1u);
    EXPECT_EQ(store->tombstones().at(owner), 77);
    ASSERT_EQ(store->Erasures().size(), 1u);
    EXPECT_EQ(store->Erasures()[0].id, 3u);
    ASSERT_TRUE(store->MarkComplete().ok());
  }
  EXPECT_FALSE(std::filesystem::exists(options_.path + ".corrupt-1"));
}

// A file system of its own, so that it can be full.
class FullCatalogDiskTest : public RocksStoreTest {
 protected:
  bool Mount(uint64_t bytes) {
    const std::string size = "size=" + std::to_string(bytes);
    return mounted_ = ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  ~FullCatalogDiskTest() override {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  void Fill() const {
    std::ofstream junk(folder_ + "/junk", std::ios::binary);
    const std::string piece(64 * kKiB, 'x');
    while (junk.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
    }
  }

 private:
  bool mounted_ = false;
};

TEST_F(FullCatalogDiskTest, TheBallastLetsADatabaseOpenOnADiskThatOthersFilled) {
  if (!Mount(kCatalogBallastBytes + 32 * kMiB)) GTEST_SKIP() << "mounting needs root";
  {
    auto store = Open();
    ASSERT_TRUE(PutMany(store.get(), 1, 2000).ok());
    ASSERT_TRUE(store->MarkComplete().ok());
    EXPECT_EQ(std::filesystem::file_size(options_.path + ".ballast"), kCatalogBallastBytes);
  }
  Fill();
  {
    auto store = Open();
    EXPECT_FALSE(std::filesystem::exists(options_.path + ".ballast"));
    EXPECT_FALSE(store->incomplete());
    EXPECT_EQ(CountOf(store.get()), 2000u);
    EXPECT_TRUE(PutMany(store.get(), 5000, 2000).ok()) << "and there is room to work with";
  }
  std::filesystem::remove(folder_ + "/junk");
  EXPECT_EQ(CountOf(Open().get()), 4000u);
  EXPECT_TRUE(std::filesystem::exists(options_.path + ".ballast")) << "held back again";
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

// Logs, tables that were written over and temporary files included: what a disk has to have beside the blocks.
TEST_F(RocksStoreTest, TheFolderStaysSmallWhateverWasWrittenAndDeleted) {
  constexpr uint32_t kSlots = 20'000;
  constexpr uint64_t kWritten = 3 * (kCatalogWalBytesMax + 4 * kCatalogMemtableBytes);
  const auto bytes_of_folder = [this] {
    uint64_t bytes = 0;
    std::error_code gone;  // a file may be removed while it is looked at
    for (const auto& entry : std::filesystem::directory_iterator(options_.path)) {
      const uint64_t size = entry.file_size(gone);
      bytes += gone ? 0 : size;
    }
    return bytes;
  };
  auto store = Open();
  uint64_t most = 0;
  for (uint64_t written = 0; written < kWritten; written += kSlots * sizeof(CatalogRecord)) {
    ASSERT_TRUE(PutMany(store.get(), 1, kSlots).ok());
    for (uint32_t slot = 1; slot <= kSlots; ++slot) store->Delete(SlotId(slot));
    ASSERT_TRUE(store->Commit(false).ok());
    most = std::max(most, bytes_of_folder());
  }
  EXPECT_GT(most, kCatalogMemtableBytes) << "nothing was looked at";
  EXPECT_LT(most, kWritten / 2);
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
