// A node with several disks: what one of them does, or stops doing, costs the others nothing.
#include "daemon/tier/disk_catalogs.h"
#include "daemon/tier/nvme_disk.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvartal::engine {
namespace {

using testing::DiskFault;

class DisksTest : public EngineTest {
 protected:
  static constexpr uint64_t kDiskBytes = 96 * kMiB;

  void StartWith(std::vector<policy::TenantRules> rules, size_t disks = 3) {
    for (size_t i = 0; i < disks; ++i) {
      fakes_.push_back(testing::MakeFakeDisk(kDiskBytes));
      records_.push_back(std::make_shared<testing::CatalogDisk>());
    }
    nvme_capacity_bytes_ = disks * kDiskBytes;
    Start(std::move(rules));
  }
  // With these alone, by their first numbers: the others cannot be opened.
  void RestartWith(const std::vector<size_t>& present) {
    for (auto& file : files_) file->CutPower();
    present_ = present;
    Restart();
  }
  void BootNvme(EngineDevices* devices) override {
    if (present_.empty()) {
      for (size_t i = 0; i < fakes_.size(); ++i) present_.push_back(i);
    }
    std::vector<std::shared_ptr<tier::NvmeDisk>> disks;
    std::vector<std::unique_ptr<tier::NvmeCatalog>> catalogs;
    for (const size_t i : present_) {
      auto file = testing::FakeBlockFile::Open(fakes_[i], executor_.get());
      ASSERT_TRUE(file.ok()) << file.status();
      files_.push_back(*std::move(file));
      disks.push_back(*tier::NvmeDisk::Open(files_.back().get(), &clock_));
      auto catalog = std::make_unique<testing::FakeCatalog>(executor_.get(), records_[i]);
      if (i == full_catalog_) catalog->FailWrites(absl::ResourceExhaustedError("no space left"));
      catalogs.push_back(std::move(catalog));
    }
    nvme_ = std::make_unique<tier::NvmeTier>(std::move(disks));
    joined_ = std::make_unique<tier::DiskCatalogs>(std::move(catalogs), nvme_->map());
    devices->nvme = nvme_.get();
    devices->catalog = joined_.get();
    devices->absent_disks = static_cast<uint32_t>(fakes_.size() - present_.size());
    if (ring_ != nullptr) ciphers_ = std::make_unique<tier::TenantCiphers>(ring_, joined_.get(), devices->absent_disks);
    devices->ciphers = ciphers_.get();
  }
  void ShutdownNvme() override {
    nvme_.reset();
    ciphers_.reset();
    joined_.reset();
    files_.clear();
  }
  ~DisksTest() override { Shutdown(); }

  // Heads of chains, which go where most is free; stored one after another.
  void StoreHeads(const std::string& tenant, NamespaceId ns, uint64_t first, size_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_EQ(Store(tenant, ns, Chain(first + i, 1)), 1u);
      Pump();
    }
  }
  size_t Found(NamespaceId ns, uint64_t first, size_t count) {
    size_t found = 0;
    for (uint64_t i = 0; i < count; ++i) found += Matched(ns, Chain(first + i, 1));
    return found;
  }
  Loaded LoadHeads(const std::string& tenant, NamespaceId ns, uint64_t first, size_t count) {
    Loaded sum;
    for (uint64_t i = 0; i < count; ++i) {
      const Loaded one = LookupAndLoad(tenant, ns, Chain(first + i, 1));
      sum.count += one.count;
      sum.wrong += one.wrong;
    }
    return sum;
  }
  uint64_t BlocksOn(size_t disk) {
    return engine_->stats().nvme_disks[disk].granted_bytes / (kTestBlockBytes + kNvmeHeaderBytes);
  }
  uint64_t ChargedOf(const std::string& tenant) { return TierStatsOf(tenant, TierKind::kNvme).charged_bytes; }
  void ExpectBooksAgree() {
    engine_->CheckInvariants();
    uint64_t charged = 0, granted = 0;
    for (const TenantStats& tenant : engine_->stats().tenants)
      charged += tenant.tiers[TierIndex(TierKind::kNvme)].charged_bytes;
    for (const tier::DiskStats& disk : engine_->stats().nvme_disks) granted += disk.granted_bytes;
    EXPECT_EQ(charged, granted);
  }

  std::vector<std::shared_ptr<testing::FakeDisk>> fakes_;
  std::vector<std::shared_ptr<testing::CatalogDisk>> records_;
  std::vector<std::unique_ptr<testing::FakeBlockFile>> files_;
  std::unique_ptr<tier::DiskCatalogs> joined_;
  std::vector<size_t> present_;
  size_t full_catalog_ = SIZE_MAX;  // of that disk
};

TEST_F(DisksTest, BlocksOnAllDisksComeBackAndATenantsLimitIsThatOfTheirSum) {
  constexpr uint64_t kLimit = 40 * (kTestBlockBytes + kNvmeHeaderBytes);
  StartWith({Rules("a/p", 64 * kMiB, kLimit)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  EXPECT_EQ(ChargedOf("a/p"), kLimit);
  for (const tier::DiskStats& disk : engine_->stats().nvme_disks) EXPECT_GT(disk.granted_bytes, 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).overshoot_bytes, 0u);
  ExpectBooksAgree();

  RestartWith({2, 0, 1});
  const NamespaceId ns = Open("a/p");
  EXPECT_EQ(ChargedOf("a/p"), kLimit);
  EXPECT_EQ(Found(ns, 21, 40), 40u) << "the order of the disks does not matter";
  const Loaded loaded = LoadHeads("a/p", ns, 21, 40);
  EXPECT_EQ(loaded.count, 40u);
  EXPECT_EQ(loaded.wrong, 0u);
  ExpectBooksAgree();
}

TEST_F(DisksTest, WithoutOneDiskItsBlocksAreMissesAndWithItTheyAreBack) {
  StartWith({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  const uint64_t on_second = engine_->stats().nvme_disks[1].granted_bytes / (kTestBlockBytes + kNvmeHeaderBytes);
  ASSERT_GT(on_second, 0u);

  RestartWith({0, 2});
  NamespaceId ns = Open("a/p");
  EXPECT_EQ(Found(ns, 1, 60), 60 - on_second);
  // What was a miss is stored anew, on a disk that is there.
  for (uint64_t i = 1; i <= 60; ++i) {
    if (Matched(ns, Chain(i, 1)) == 0) StoreHeads("a/p", ns, i, 1);
  }
  EXPECT_EQ(Found(ns, 1, 60), 60u);
  ExpectBooksAgree();

  RestartWith({0, 1, 2});
  ns = Open("a/p");
  const Loaded loaded = LoadHeads("a/p", ns, 1, 60);
  EXPECT_EQ(loaded.count, 60u);
  EXPECT_EQ(loaded.wrong, 0u);
  ExpectBooksAgree();
}

TEST_F(DisksTest, AReplacedDiskCostsNothingOnTheOthersAndItsHeadersAloneAreRead) {
  StartWith({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  AdvanceMs(1000);
  Restart();
  const uint64_t on_first = engine_->stats().nvme_disks[0].granted_bytes / (kTestBlockBytes + kNvmeHeaderBytes);
  for (auto& file : files_) file->CutPower();
  Shutdown();
  fakes_[0] = testing::MakeFakeDisk(kDiskBytes);
  records_[0] = std::make_shared<testing::CatalogDisk>();
  Boot();
  EXPECT_EQ(Found(Open("a/p"), 1, 60), 60 - on_first);
  EXPECT_GT(files_[0]->counts().reads, 0u);
  EXPECT_EQ(files_[1]->counts().reads + files_[2]->counts().reads, 0u);
  ExpectBooksAgree();
}

TEST_F(DisksTest, ALostCatalogOfOneDiskIsRebuiltFromItsHeaders) {
  StartWith({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  records_[1] = std::make_shared<testing::CatalogDisk>();
  RestartWith({0, 1, 2});
  const NamespaceId ns = Open("a/p");
  const Loaded loaded = LoadHeads("a/p", ns, 1, 60);
  EXPECT_EQ(loaded.count, 60u);
  EXPECT_EQ(loaded.wrong, 0u);
  ExpectBooksAgree();
}

TEST_F(DisksTest, WhatLiesOnAnOfflineDiskIsAMissAndTheOthersServeAndTakeNewBlocks) {
  StartWith({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  RestartWith({0, 1, 2});
  const NamespaceId ns = Open("a/p");
  const uint64_t on_second = engine_->stats().nvme_disks[1].granted_bytes / (kTestBlockBytes + kNvmeHeaderBytes);
  files_[1]->SetOverdue(1);
  EXPECT_EQ(engine_->stats().nvme_state, tier::DeviceState::kHealthy);
  EXPECT_EQ(Found(ns, 1, 60), 60 - on_second);
  const uint64_t before = engine_->stats().nvme_disks[1].granted_bytes;
  StoreHeads("a/p", ns, 100, 20);
  EXPECT_EQ(StatsOf("a/p").durable_blocks, 80u);
  EXPECT_EQ(engine_->stats().nvme_disks[1].granted_bytes, before);
  files_[1]->SetOverdue(0);
  EXPECT_EQ(Found(ns, 1, 60), 60u) << "it was there all the while";
  ExpectBooksAgree();
}

TEST_F(DisksTest, AFullTierWithASickDiskGivesUpBlocksOfTheOthersAlone) {
  StartWith({Rules("a/p", 32 * kMiB, 3 * kDiskBytes)});
  const NamespaceId ns = Open("a/p");
  // More than fits: eviction has begun.
  StoreHeads("a/p", ns, 1, 1200);
  files_[1]->SetOverdue(1);
  const uint64_t kept = engine_->stats().nvme_disks[1].granted_bytes;
  ASSERT_GT(kept, 0u);
  const uint64_t written = nvme_->counters().blocks_written;
  StoreHeads("a/p", ns, 5000, 300);
  EXPECT_EQ(engine_->stats().nvme_disks[1].granted_bytes, kept) << "nothing there makes room for anybody";
  EXPECT_EQ(nvme_->counters().blocks_written, written + 300);
  ExpectBooksAgree();
}

TEST_F(DisksTest, HoweverManyBlocksLieOnASickDiskTheOthersMakeRoom) {
  StartWith({Rules("a/p", 32 * kMiB, 3 * kDiskBytes)});
  const NamespaceId ns = Open("a/p", 1, 1, 4096);
  const auto store = [&](uint64_t number) {
    const std::vector<ReservedBlock> blocks = Reserve(kGroup, ns, Chain(number, 1));
    ASSERT_EQ(blocks[0].outcome, ReserveOutcome::kGranted);
    engine_->Commit(kGroup, blocks[0].reservation, 0);
    Pump();
  };
  for (uint64_t i = 0; i < 36'000; ++i) store(1 + i);
  const uint64_t kept = engine_->stats().nvme_disks[1].granted_bytes;
  ASSERT_GT(kept / (2 * kNvmeHeaderBytes), 2 * kVictimProbesMax);
  files_[1]->SetOverdue(1);
  const uint64_t written = nvme_->counters().blocks_written;
  // The others' turn over once: what is oldest by then lies on the sick one alone.
  for (uint64_t i = 0; i < 24'000; ++i) store(100'000 + i);
  EXPECT_EQ(nvme_->counters().blocks_written, written + 24'000);
  EXPECT_EQ(engine_->stats().nvme_disks[1].granted_bytes, kept);
  ExpectBooksAgree();
}

TEST_F(DisksTest, NobodyWaitsForDemotionsToADiskThatHangs) {
  // Far more in DRAM than NVMe holds of it: what goes from DRAM has to be written first.
  StartWith({Rules("a/p", 16 * kMiB, 8 * (kTestBlockBytes + kNvmeHeaderBytes))});
  const NamespaceId ns = Open("a/p");
  StoreHeads("a/p", ns, 1, 64);
  files_[1]->Hold();
  bool answered = true;
  std::optional<ReservationId> granted;  // the last answer comes after the loop
  for (uint64_t next = 1000; answered && next < 1100; ++next) {
    answered = false;
    granted.reset();
    const std::vector<BlockKey> keys = Chain(next, 1);
    engine_->Reserve({.group = kGroup, .ns = ns, .keys = keys}, [&](const std::vector<ReservedBlock>& blocks) {
      answered = true;
      if (blocks[0].outcome == ReserveOutcome::kGranted) granted = blocks[0].reservation;
    });
    Pump();
    if (granted.has_value()) engine_->Commit(kGroup, *granted, 0);
    Pump();
  }
  ASSERT_FALSE(answered) << "one of them waits for what is written to the second disk";
  files_[1]->SetOverdue(1);
  AdvanceMs(kTickMs);
  EXPECT_TRUE(answered);
  engine_->AbortGroup(kGroup);
  Pump();
  StoreHeads("a/p", ns, 2000, 30);
  EXPECT_EQ(engine_->stats().waiting_requests, 0u);
  files_[1]->SetOverdue(0);
  files_[1]->Release();
  Pump();
  ExpectBooksAgree();
}

TEST_F(DisksTest, NobodyWaitsForASegmentOnADiskThatHangs) {
  StartWith({Rules("a/p", 64 * kMiB, 3 * kDiskBytes), Rules("b/p", 64 * kMiB, 3 * kDiskBytes)});
  const NamespaceId ns = Open("a/p");
  StoreHeads("a/p", ns, 1, 1200);
  // Half of it goes, wherever it lies: bytes are free, and no segment is.
  for (uint64_t i = 1; i <= 1200; i += 2) Matched(ns, Chain(i, 1));
  rules_[0].tier(TierKind::kNvme).limit_bytes = 3 * kDiskBytes / 2;
  engine_->ApplyPolicy(Table());
  AdvanceMs(3000);
  constexpr uint32_t kLarge = 2 * kTestBlockBytes;
  const NamespaceId large = Open("b/p", 1, 1, kLarge);
  for (auto& file : files_) file->Hold();
  Store("b/p", large, Chain(5000, 1));
  Pump();
  ASSERT_TRUE(nvme_->leaving());
  size_t leaving_on = 0;
  while (leaving_on + 1 < files_.size() && files_[leaving_on]->Pending() == 0) ++leaving_on;
  files_[leaving_on]->SetOverdue(1);
  AdvanceMs(kTickMs);
  EXPECT_FALSE(nvme_->leaving()) << "on the others there may be room";
  for (size_t i = 0; i < files_.size(); ++i) {
    if (i != leaving_on) files_[i]->Release();
  }
  AdvanceMs(kSegmentStuckTicks * kTickMs);
  Store("b/p", large, Chain(6000, 1));
  AdvanceMs(5 * kTimerBusyTicks * kTickMs);
  EXPECT_EQ(TierStatsOf("b/p", TierKind::kNvme).blocks, 1u) << "and what hangs there keeps none of them from it";
  files_[leaving_on]->SetOverdue(0);
  files_[leaving_on]->Release();
  Pump();
  ExpectBooksAgree();
}

TEST_F(DisksTest, WhatIsToBeErasedOnADiskThatHangsHoldsUpNoOtherDisk) {
  StartWith({Rules("a/p", 64 * kMiB, 3 * kDiskBytes), Rules("b/p", 64 * kMiB, 3 * kDiskBytes)});
  const NamespaceId a = Open("a/p"), b = Open("b/p");
  StoreHeads("a/p", a, 1, 4 * kErasuresMax);
  StoreHeads("b/p", b, 10'000, 30);
  ASSERT_GT(BlocksOn(1), size_t{kErasuresMax});
  files_[1]->Hold();
  rules_[0].max_age_ms = 1000;
  engine_->ApplyPolicy(Table());
  AdvanceMs(5'000);
  EXPECT_GT(BlocksOn(0) + BlocksOn(2), 20u) << "as many are being erased as may be";
  files_[1]->SetOverdue(1);
  AdvanceMs(10'000);
  EXPECT_LE(BlocksOn(0) + BlocksOn(2), 30u) << "the other tenant's";
  engine_->DropTenant(engine_->FindTenant("b/p"), [](const absl::StatusOr<uint64_t>&) {});
  AdvanceMs(1'000);
  EXPECT_EQ(BlocksOn(0) + BlocksOn(2), 0u);
  files_[1]->SetOverdue(0);
  files_[1]->Release();
  AdvanceMs(5'000);
  EXPECT_EQ(BlocksOn(1), 0u);
  ExpectBooksAgree();
}

TEST_F(DisksTest, ADiskThatBeginsToHangBetweenTwoQuestionsEndsNoDaemon) {
  for (size_t questions = 1; questions <= 60; ++questions) {
    fakes_.clear();
    records_.clear();
    present_.clear();
    StartWith({Rules("a/p", 64 * kMiB, kDiskBytes), Rules("b/p", 64 * kMiB, kDiskBytes)}, 1);
    const NamespaceId ns = Open("a/p");
    StoreHeads("a/p", ns, 1, 400);
    for (uint64_t i = 1; i <= 400; i += 2) Matched(ns, Chain(i, 1));
    rules_[0].tier(TierKind::kNvme).limit_bytes = kDiskBytes / 2;
    engine_->ApplyPolicy(Table());
    AdvanceMs(2000);
    const NamespaceId large = Open("b/p", 1, 1, 2 * kTestBlockBytes);
    files_[0]->SetOverdueAfter(questions);
    Store("b/p", large, Chain(5000, 1));
    AdvanceMs(kTickMs);
    files_[0]->SetOverdue(0);
    AdvanceMs(kTickMs);
    ExpectBooksAgree();
    Shutdown();
  }
}

TEST_F(DisksTest, NobodyWaitsForAGuaranteeThatASickDiskHolds) {
  policy::TenantRules owed = Rules("a/p", 16 * kMiB, 2 * kDiskBytes);
  owed.tier(TierKind::kNvme).guarantee_bytes = 2 * kDiskBytes - 8 * kMiB;
  StartWith({owed, Rules("b/p", 16 * kMiB, 2 * kDiskBytes)}, 2);
  // The second tenant borrows all of it; then the disk that it is left on by the first one's claim hangs.
  StoreHeads("b/p", Open("b/p"), 1, 800);
  files_[1]->SetOverdue(1);
  const NamespaceId ns = Open("a/p");
  StoreHeads("a/p", ns, 2000, 600);
  EXPECT_EQ(engine_->stats().waiting_requests, 0u);
  EXPECT_GT(ChargedOf("a/p"), 64 * kMiB) << "it has what the other disk can give";
  EXPECT_GT(ChargedOf("b/p"), 0u) << "what lies on the one that hangs is kept";
  ExpectBooksAgree();
}

TEST_F(DisksTest, ADropWhileADiskIsAwayIsNotCertifiedAndErasesItsBlocksWhenItIsBack) {
  StartWith({Rules("a/p", 64 * kMiB, 64 * kMiB), Rules("b/p", 64 * kMiB, 64 * kMiB)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  RestartWith({0, 2});
  std::optional<absl::StatusOr<uint64_t>> dropped;
  engine_->DropTenant(engine_->FindTenant("a/p"), [&](absl::StatusOr<uint64_t> bytes) { dropped = std::move(bytes); });
  Pump();
  AdvanceMs(kTickMs);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_FALSE(dropped->ok()) << "nobody knows what lies on the third disk";
  ASSERT_FALSE(receipts_.empty());
  EXPECT_GT(receipts_.back().unerased_blocks, 0u);
  receipts_.clear();

  RestartWith({0, 1, 2});
  EXPECT_EQ(Found(Open("a/p"), 1, 60), 0u);
  AdvanceMs(10 * kTickMs);
  ASSERT_EQ(receipts_.size(), 1u);
  EXPECT_GT(receipts_[0].blocks, 0u);
  EXPECT_EQ(receipts_[0].unerased_blocks, 0u);
  for (uint64_t i = 1; i <= 60; ++i) {
    const std::string page(4096, static_cast<char>(KeyOf(i).bytes[0]));
    if (page[0] == 0) continue;
    const std::span<const std::byte> disk = files_[1]->bytes();
    for (size_t at = 0; at < disk.size(); at += page.size())
      ASSERT_NE(std::memcmp(disk.data() + at, page.data(), page.size()), 0) << "block " << i << " is still there";
  }
  ExpectBooksAgree();
}

TEST_F(DisksTest, ADiskThatIsBackAndHasNoRoomForATombstoneBringsNothingBack) {
  StartWith({Rules("a/p", 64 * kMiB, 64 * kMiB)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  RestartWith({0, 2});
  engine_->DropTenant(engine_->FindTenant("a/p"), [](const absl::StatusOr<uint64_t>&) {});
  Pump();
  AdvanceMs(kTickMs);
  full_catalog_ = 1;
  RestartWith({0, 1, 2});
  EXPECT_EQ(Found(Open("a/p"), 1, 60), 0u);
  AdvanceMs(10 * kTickMs);
  EXPECT_EQ(BlocksOn(1), 0u) << "they are erased";
  ExpectBooksAgree();
}

// On the second disk, and, since that was away, stored anew and pinned on the first.
class TwoRecordsTest : public DisksTest, public ::testing::WithParamInterface<std::vector<size_t>> {};

INSTANTIATE_TEST_SUITE_P(BothOrders, TwoRecordsTest,
                         ::testing::Values(std::vector<size_t>{0, 1}, std::vector<size_t>{1, 0}),
                         [](const auto& param) { return param.param[0] == 0 ? "PinnedFirst" : "PinnedLast"; });

TEST_P(TwoRecordsTest, APinOutlivesTheRecordThatIsForgotten) {
  policy::TenantRules rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.tier(TierKind::kNvme).guarantee_bytes = kTestBlockBytes + kNvmeHeaderBytes;
  StartWith({rules}, 2);
  RestartWith({1});
  StoreHeads("a/p", Open("a/p"), 1, 1);
  AdvanceMs(1000);
  RestartWith({0});
  StoreHeads("a/p", Open("a/p"), 1, 1);
  ASSERT_EQ(Pin(Open("a/p"), Chain(1, 1), 600'000), policy::Refusal::kNone);
  AdvanceMs(1000);
  RestartWith(GetParam());
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 1u);
  EXPECT_EQ(StatsOf("a/p").entries, 1u);
  ExpectBooksAgree();
  AdvanceMs(1000);
  ASSERT_EQ(records_[0]->records.size() + records_[1]->records.size(), 1u);
  RestartWith({0, 1});
  EXPECT_EQ(StatsOf("a/p").pinned_blocks, 1u) << "the record that stayed tells of it by now";
  ExpectBooksAgree();
}

// Else the salt that was made meanwhile would take the place of the one that they are encrypted under.
TEST_F(DisksTest, EncryptedBlocksOfAnAbsentDiskAreReadWhenItIsBackThoughTheOthersAreNew) {
  const std::string key = "1 " + std::string(64, 'a') + "\n";
  ring_ = std::make_shared<cipher::KeyRing>();
  ring_->Set(*cipher::NodeKeys::Parse(std::as_bytes(std::span(key))));
  policy::TenantRules rules = Rules("a/p", 64 * kMiB, 64 * kMiB);
  rules.encrypt_nvme = true;
  StartWith({rules}, 2);
  StoreHeads("a/p", Open("a/p"), 1, 20);
  AdvanceMs(1000);
  const uint64_t on_first = BlocksOn(0);
  ASSERT_GT(on_first, 0u);
  ASSERT_LT(on_first, 20u);

  fakes_[1] = testing::MakeFakeDisk(kDiskBytes);
  records_[1] = std::make_shared<testing::CatalogDisk>();
  RestartWith({1});
  NamespaceId ns = Open("a/p");
  StoreHeads("a/p", ns, 100, 5);
  EXPECT_EQ(Found(ns, 100, 5), 5u) << "memory is not meant";
  EXPECT_EQ(ChargedOf("a/p"), 0u);
  EXPECT_EQ(TierStatsOf("a/p", TierKind::kNvme).refusal(policy::Refusal::kEncryptionKeyMissing).count, 5u);

  RestartWith({0, 1});
  ns = Open("a/p");
  const Loaded loaded = LoadHeads("a/p", ns, 1, 20);
  EXPECT_EQ(loaded.count, on_first);
  EXPECT_EQ(loaded.wrong, 0u);
  StoreHeads("a/p", ns, 200, 8);
  EXPECT_GT(BlocksOn(1), 0u) << "it has the salt of the other one";
  ExpectBooksAgree();
}

TEST_F(DisksTest, WhatWasGivenUpStaysSoThoughAllHeadersAreReadForWhatARemovalOwes) {
  constexpr uint64_t kLimit = 40 * (kTestBlockBytes + kNvmeHeaderBytes);
  StartWith({Rules("a/p", 64 * kMiB, kLimit), Rules("b/p", 64 * kMiB, 64 * kMiB)});
  StoreHeads("a/p", Open("a/p"), 1, 60);
  AdvanceMs(1000);
  const std::vector<uint64_t> kept = {BlocksOn(0), BlocksOn(1), BlocksOn(2)};
  StoreHeads("b/p", Open("b/p", 2), 1000, 6);
  for (auto& file : files_) file->Hold();
  engine_->DropTenant(engine_->FindTenant("b/p"), [](const absl::StatusOr<uint64_t>&) {});
  Pump();
  ASSERT_FALSE(records_[0]->erasures.empty());

  rules_[0].tier(TierKind::kNvme).limit_bytes = 64 * kMiB;
  records_[1] = std::make_shared<testing::CatalogDisk>();
  RestartWith({0, 1, 2});
  AdvanceMs(2000);
  ASSERT_FALSE(receipts_.empty());
  EXPECT_EQ(receipts_.back().unerased_blocks, 0u);
  EXPECT_EQ(BlocksOn(0), kept[0]);
  EXPECT_GT(BlocksOn(1), kept[1]) << "without records nobody knows which headers count";
  EXPECT_EQ(BlocksOn(2), kept[2]);
  ExpectBooksAgree();
}

}  // namespace
}  // namespace kvartal::engine
