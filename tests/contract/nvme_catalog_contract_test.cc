// What every NvmeCatalog promises, shown for the fake and for RocksDB; then what only a real folder can go through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "daemon/base/limits.h"
#include "daemon/tier/nvme_catalog.h"
#include "tests/contract/catalog_calls.h"
#include "tests/support/fake_catalog.h"
#include "tests/support/manual_executor.h"
#include "tests/support/scratch_dir.h"

namespace kvartal::tier {
namespace {

using testing::ManualExecutor;

constexpr auto kUnheard = [](const absl::Status&) {};

// A place that catalogs are opened on, again and again.
class CatalogPlace {
 public:
  virtual ~CatalogPlace() = default;
  virtual std::unique_ptr<NvmeCatalog> Open(Executor* executor) = 0;
};

class FakePlace : public CatalogPlace {
 public:
  std::unique_ptr<NvmeCatalog> Open(Executor* executor) override {
    return std::make_unique<testing::FakeCatalog>(executor, disk_);
  }

 private:
  const std::shared_ptr<testing::CatalogDisk> disk_ = std::make_shared<testing::CatalogDisk>();
};

class RocksPlace : public CatalogPlace {
 public:
  std::unique_ptr<NvmeCatalog> Open(Executor* executor) override {
    auto catalog = OpenRocksCatalog({.path = folder_.File("catalog"), .device_id = "d0"}, executor);
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return *std::move(catalog);
  }

 private:
  const testing::ScratchDir folder_;
};

enum class Kind { kFake, kRocks };

class NvmeCatalogContract : public ::testing::TestWithParam<Kind> {
 protected:
  NvmeCatalogContract() : calls_(&executor_) {
    if (GetParam() == Kind::kFake) {
      place_ = std::make_unique<FakePlace>();
    } else {
      place_ = std::make_unique<RocksPlace>();
    }
    Reopen();
  }
  void Reopen() {
    catalog_.reset();
    catalog_ = place_->Open(&executor_);
  }

  ManualExecutor executor_;
  std::unique_ptr<CatalogPlace> place_;
  std::unique_ptr<NvmeCatalog> catalog_;
  CatalogCalls calls_;
};

INSTANTIATE_TEST_SUITE_P(All, NvmeCatalogContract, ::testing::Values(Kind::kFake, Kind::kRocks),
                         [](const auto& param) { return param.param == Kind::kFake ? "Fake" : "Rocks"; });

// A life that ends before it has put all that the headers tell leaves the rest to the next.
TEST_P(NvmeCatalogContract, SaysThatRecordsAreMissingUntilItIsToldThatNoneAre) {
  EXPECT_TRUE(catalog_->incomplete());
  EXPECT_TRUE(calls_.Load(catalog_.get()).empty());
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(5, 50)).ok());
  Reopen();
  EXPECT_TRUE(catalog_->incomplete());
  EXPECT_EQ(calls_.Load(catalog_.get()).size(), 1u) << "what was put is there all the same";
  catalog_->MarkComplete();
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  EXPECT_TRUE(catalog_->incomplete()) << "as of this open";
  Reopen();
  EXPECT_FALSE(catalog_->incomplete());
}

TEST_P(NvmeCatalogContract, RecordsComeBackWhole) {
  const CatalogRecord record = RecordOf(77, 5, 9, 123456);
  ASSERT_TRUE(calls_.Put(catalog_.get(), record).ok());
  Reopen();
  const auto records = calls_.Load(catalog_.get());
  ASSERT_EQ(records.size(), 1u);
  const BlockHeader& header = records.at(77);
  EXPECT_EQ(header.identity.key, record.header.identity.key);
  EXPECT_EQ(header.identity.owner, record.header.identity.owner);
  EXPECT_EQ(header.identity.payload_bytes, record.header.identity.payload_bytes);
  EXPECT_EQ(header.generation, record.header.generation);
  EXPECT_EQ(header.first_commit_ms, record.header.first_commit_ms);
  EXPECT_EQ(header.payload_xxh3, record.header.payload_xxh3);
}

TEST_P(NvmeCatalogContract, TheTimesOfARecordChangeAndNothingElse) {
  const CatalogRecord record = RecordOf(77, 5, 9, 123456);
  // Asked for while the record itself is on its way.
  std::optional<absl::Status> put;
  ASSERT_TRUE(catalog_->Put(record, [&](absl::Status status) { put = std::move(status); }));
  ASSERT_TRUE(catalog_->Refresh(SlotId(77), {.last_access_ms = 222'222, .pinned_until_s = 333}, kUnheard));
  ASSERT_TRUE(catalog_->Refresh(SlotId(78), {.last_access_ms = 1, .pinned_until_s = 1}, kUnheard));  // of no record
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  Reopen();
  const auto records = calls_.Load(catalog_.get());
  ASSERT_EQ(records.size(), 1u);
  const BlockHeader& header = records.at(77);
  EXPECT_EQ(header.last_access_ms, 222'222);
  EXPECT_EQ(header.pinned_until_s, 333u);
  EXPECT_EQ(header.first_commit_ms, 123456);
  EXPECT_EQ(header.generation, record.header.generation);
  EXPECT_EQ(header.identity.key, record.header.identity.key);
}

TEST_P(NvmeCatalogContract, ARefreshBringsNoDeletedRecordBack) {
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(77, 5)).ok());
  catalog_->Delete(SlotId(77));
  ASSERT_TRUE(catalog_->Refresh(SlotId(77), {.last_access_ms = 1}, kUnheard));
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  Reopen();
  EXPECT_TRUE(calls_.Load(catalog_.get()).empty());
}

TEST_P(NvmeCatalogContract, ADateIsKeptForTheNextLife) {
  EXPECT_EQ(catalog_->kept_time_ms(), 0);
  catalog_->KeepTime(1'700'000'000'000);
  catalog_->KeepTime(1'700'000'060'000);
  catalog_->KeepTime(1'700'000'030'000);
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  Reopen();
  EXPECT_EQ(catalog_->kept_time_ms(), 1'700'000'060'000);
}

// A life that began before them would take what they tell for the future, and outdate nothing of it.
TEST_P(NvmeCatalogContract, NoRecordIsDatedAfterTheDateThatIsKept) {
  catalog_->KeepTime(1'700'000'000'000);
  CatalogRecord record = RecordOf(7, 1, 9, 1'700'000'030'000);
  record.header.last_access_ms = 0;
  ASSERT_TRUE(calls_.Put(catalog_.get(), record).ok());
  Reopen();
  EXPECT_EQ(catalog_->kept_time_ms(), 1'700'000'030'000);
  ASSERT_TRUE(catalog_->Refresh(SlotId(7), {.last_access_ms = 1'700'000'040'000}, kUnheard));
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  Reopen();
  EXPECT_EQ(catalog_->kept_time_ms(), 1'700'000'040'000);
}

TEST_P(NvmeCatalogContract, ManyRecordsComeInBoundedBatches) {
  constexpr uint32_t kRecords = 3 * kRecoveryBatchMax + 17;
  uint32_t done = 0;
  for (uint32_t i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(
        catalog_->Put(RecordOf(i * 3 + 1, i), [&](const absl::Status& status) { done += status.ok() ? 1 : 0; }));
    if (i % 500 == 0) executor_.RunAll();
  }
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  executor_.RunUntil([&] { return done == kRecords; });
  Reopen();
  const auto records = calls_.Load(catalog_.get());
  ASSERT_EQ(records.size(), kRecords);
  for (uint32_t i = 0; i < kRecords; ++i) EXPECT_EQ(NumberOf(records.at(i * 3 + 1)), i);
}

TEST_P(NvmeCatalogContract, OperationsOnASlotKeepTheirOrder) {
  // Not one of them is waited for: order is all there is.
  int done = 0;
  const auto count = [&](const absl::Status&) { ++done; };
  ASSERT_TRUE(catalog_->Put(RecordOf(1, 10), count));
  catalog_->Delete(SlotId(1));
  ASSERT_TRUE(catalog_->Put(RecordOf(1, 11), count));  // deleted, then put: there
  ASSERT_TRUE(catalog_->Put(RecordOf(2, 20), count));
  catalog_->Delete(SlotId(2));  // put, then deleted: gone
  ASSERT_TRUE(catalog_->Put(RecordOf(3, 30), count));
  ASSERT_TRUE(catalog_->Put(RecordOf(3, 31), count));  // the last wins
  catalog_->Delete(SlotId(4));                         // was never there
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  executor_.RunUntil([&] { return done == 5; });
  Reopen();
  const auto records = calls_.Load(catalog_.get());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(NumberOf(records.at(1)), 11u);
  EXPECT_EQ(NumberOf(records.at(3)), 31u);
}

TEST_P(NvmeCatalogContract, TombstoneKeepsWhatIsOlderFromComingBack) {
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(1, 1, /*owner=*/7, 999)).ok());
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(2, 2, 7, 1000)).ok());
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(3, 3, 8, 1)).ok());
  ASSERT_TRUE(calls_.Tombstone(catalog_.get(), 7, 1000).ok());
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(4, 4, 7, 500)).ok());  // written late, committed early
  Reopen();
  const auto records = calls_.Load(catalog_.get());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(NumberOf(records.at(2)), 2u) << "committed at the time itself: not before it";
  EXPECT_EQ(NumberOf(records.at(3)), 3u) << "another owner";
  EXPECT_EQ(calls_.condemned(), (std::set<uint32_t>{1, 4})) << "told, so that their bytes can be erased";
  // And not at a later start either, until they are deleted.
  Reopen();
  EXPECT_EQ(calls_.Load(catalog_.get()).size(), 2u);
  catalog_->Delete(SlotId(1));
  catalog_->Delete(SlotId(4));
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  Reopen();
  EXPECT_EQ(calls_.Load(catalog_.get()).size(), 2u);
  EXPECT_TRUE(calls_.condemned().empty());
}

TEST_P(NvmeCatalogContract, AnOlderTombstoneDoesNotReplaceANewerOne) {
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(1, 1, 7, 1500)).ok());
  ASSERT_TRUE(calls_.Tombstone(catalog_.get(), 7, 2000).ok());
  ASSERT_TRUE(calls_.Tombstone(catalog_.get(), 7, 1000).ok());
  Reopen();
  EXPECT_EQ(catalog_->tombstones(), (std::map<OwnerUidHash, int64_t>{{OwnerOf(7), 2000}}));
  EXPECT_TRUE(calls_.Load(catalog_.get()).empty());
}

TEST_P(NvmeCatalogContract, AnErasureIsKeptUntilItEnds) {
  EXPECT_TRUE(catalog_->open_erasures().empty());
  constexpr auto kRemoval = ErasureRecord::Kind::kRemoval;
  ErasureRecord erasure{.id = 300, .kind = kRemoval, .owner = OwnerOf(7), .tenant = "r/c", .before_wall_ms = 7};
  catalog_->PutErasure(erasure);
  erasure.oldest_first_commit_ms = -5;
  erasure.dram_bytes = 1u << 20;
  erasure.nvme_bytes = uint64_t{1} << 40;
  erasure.blocks = erasure.unzeroed_blocks = 3;
  catalog_->PutErasure(erasure);
  ErasureRecord other;
  for (other.id = 2; other.id < 4; ++other.id) catalog_->PutErasure(other);
  catalog_->EndErasure(3);
  ASSERT_TRUE(calls_.Flush(catalog_.get()).ok());
  Reopen();
  const std::vector<ErasureRecord> open = catalog_->open_erasures();
  ASSERT_EQ(open.size(), 2u);
  EXPECT_EQ(open[0].id + open[1].id, 302u);
  EXPECT_EQ(EncodeErasure(open[1]), EncodeErasure(erasure)) << "the last one put";
  EXPECT_TRUE(calls_.Load(catalog_.get()).empty()) << "no record of a block";
}

TEST_P(NvmeCatalogContract, AFullQueueIsARefusalAndDeletesAreNeverRefused) {
  uint64_t done = 0;
  uint32_t accepted = 0;
  while (catalog_->Put(RecordOf(accepted + 1, accepted), [&](const absl::Status&) { ++done; })) {
    ++accepted;
    ASSERT_LE(accepted, kCatalogQueueMax) << "nothing was pumped, so nothing has ended";
  }
  EXPECT_EQ(accepted, kCatalogQueueMax);
  for (uint32_t slot = 1; slot <= accepted; ++slot) catalog_->Delete(SlotId(slot));
  executor_.RunUntil([&] { return done == accepted; });
  ASSERT_TRUE(calls_.Put(catalog_.get(), RecordOf(1, 99)).ok()) << "there is room again";
  Reopen();
  const auto records = calls_.Load(catalog_.get());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(NumberOf(records.at(1)), 99u);
}

// --- RocksDB alone

class RocksCatalogTest : public ::testing::Test {
 protected:
  RocksCatalogTest() : calls_(&executor_), path_(folder_.File("catalog")) {}

  std::unique_ptr<NvmeCatalog> Open(const std::string& device_id = "d0") {
    auto catalog = OpenRocksCatalog({.path = path_, .device_id = device_id}, &executor_);
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return catalog.ok() ? *std::move(catalog) : nullptr;
  }
  void StoreOne() {
    auto catalog = Open();
    ASSERT_TRUE(calls_.Put(catalog.get(), RecordOf(5, 50)).ok());
  }
  size_t SetAside() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(path_).parent_path())) {
      if (entry.path().filename().string().starts_with("catalog.corrupt-")) ++count;
    }
    return count;
  }
  // Opens, finds nothing, and works.
  void ExpectStartsEmpty(const std::string& device_id = "d0") {
    auto catalog = Open(device_id);
    ASSERT_NE(catalog, nullptr);
    EXPECT_TRUE(catalog->incomplete());
    EXPECT_TRUE(calls_.Load(catalog.get()).empty());
    EXPECT_TRUE(calls_.Put(catalog.get(), RecordOf(6, 60)).ok());
    catalog->MarkComplete();
    catalog.reset();
    catalog = Open(device_id);
    EXPECT_FALSE(catalog->incomplete());
    EXPECT_EQ(calls_.Load(catalog.get()).size(), 1u);
  }

  ManualExecutor executor_;
  CatalogCalls calls_;
  const testing::ScratchDir folder_;
  const std::string path_;
};

TEST_F(RocksCatalogTest, ClosingWritesWhatWasAccepted) {
  auto catalog = Open();
  for (uint32_t i = 1; i <= 1000; ++i) ASSERT_TRUE(catalog->Put(RecordOf(i, i), [](const absl::Status&) {}));
  catalog.reset();
  catalog = Open();
  EXPECT_EQ(calls_.Load(catalog.get()).size(), 1000u);
}

TEST_F(RocksCatalogTest, ClosingDoesNotWaitForALoopThatIsGone) {
  {
    auto catalog = Open();
    uint32_t done = 0;
    constexpr uint32_t kRecords = (kCatalogLoadBatchesMax + 4) * kRecoveryBatchMax;
    for (uint32_t i = 0; i < kRecords; ++i) {
      while (!catalog->Put(RecordOf(i + 1, i), [&](const absl::Status&) { ++done; })) executor_.RunAll();
    }
    executor_.RunUntil([&] { return done == kRecords; });
  }
  auto catalog = Open();
  size_t batches = 0;
  bool ended = false;
  catalog->Load([&](const std::vector<CatalogRecord>&) { ++batches; }, [&](const absl::Status&) { ended = true; });
  catalog.reset();  // nobody runs the batches: it must come back all the same
  executor_.RunAll();
  EXPECT_LE(batches, kCatalogLoadBatchesMax);
  EXPECT_TRUE(ended);
}

TEST_F(RocksCatalogTest, ADeletedFolderIsAnEmptyCatalog) {
  StoreOne();
  std::filesystem::remove_all(path_);
  ExpectStartsEmpty();
  EXPECT_EQ(SetAside(), 0u);
}

TEST_F(RocksCatalogTest, ACorruptDatabaseIsSetAside) {
  StoreOne();
  size_t spoiled = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    if (!entry.path().filename().string().starts_with("MANIFEST")) continue;
    std::ofstream(entry.path(), std::ios::trunc) << "this is no manifest, this is a note of some length";
    ++spoiled;
  }
  ASSERT_EQ(spoiled, 1u);
  ExpectStartsEmpty();
  EXPECT_EQ(SetAside(), 1u);
}

TEST_F(RocksCatalogTest, AFileInPlaceOfTheFolderIsSetAside) {
  std::ofstream(path_) << "not a folder";
  ExpectStartsEmpty();
  EXPECT_EQ(SetAside(), 1u);
}

TEST_F(RocksCatalogTest, RecordsOfAnotherDeviceAreSetAside) {
  StoreOne();
  ExpectStartsEmpty("d1");
  EXPECT_EQ(SetAside(), 1u);
}

TEST_F(RocksCatalogTest, OnlyTheNewestOfThoseSetAsideAreKept) {
  for (uint32_t i = 0; i < 2 * kCatalogSetAsideMax; ++i) ASSERT_NE(Open("d" + std::to_string(i)), nullptr);
  EXPECT_EQ(SetAside(), kCatalogSetAsideMax);
}

TEST_F(RocksCatalogTest, AFolderInUseIsRefusedAndLeftAlone) {
  auto catalog = Open();
  const auto second = OpenRocksCatalog({.path = path_, .device_id = "d0"}, &executor_);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_EQ(SetAside(), 0u);
  EXPECT_TRUE(calls_.Put(catalog.get(), RecordOf(1, 1)).ok());
}

// --- kill -9

TEST_F(RocksCatalogTest, AcknowledgedRecordsSurviveKill9) {
  const std::string writer = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "nvme_catalog_writer";
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    std::filesystem::remove_all(path_);
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const std::string pipe_number = std::to_string(fds[1]);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(fds[0]);
      ::execl(writer.c_str(), "nvme_catalog_writer", path_.c_str(), pipe_number.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(fds[1]);
    uint32_t acknowledged = 0, slot = 0;
    const uint32_t enough = 1000u + 777u * static_cast<uint32_t>(round);
    while (acknowledged < enough && ::read(fds[0], &slot, sizeof(slot)) == sizeof(slot)) ++acknowledged;
    EXPECT_EQ(acknowledged, enough) << "the child ended early";
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    while (::read(fds[0], &slot, sizeof(slot)) == sizeof(slot)) ++acknowledged;
    ::close(fds[0]);

    auto catalog = Open();
    const auto records = calls_.Load(catalog.get());
    EXPECT_GE(records.size(), acknowledged);
    for (uint32_t i = 1; i <= acknowledged; ++i) {
      ASSERT_TRUE(records.contains(i)) << "record " << i << " of " << acknowledged << " was acknowledged and is lost";
      ASSERT_EQ(NumberOf(records.at(i)), i);
    }
  }
}

}  // namespace
}  // namespace kvartal::tier
