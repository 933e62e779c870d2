// The real engine over fakes that the test pumps: one node, tenants by rules, blocks whose bytes follow from their key.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/units.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/tier/dram_tier.h"
#include "daemon/tier/nvme_tier.h"
#include "daemon/tier/tenant_ciphers.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/fake_catalog.h"
#include "tests/support/fake_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::engine {

inline constexpr uint32_t kTestBlockBytes = 256 * kKiB;
inline constexpr uint64_t kTestDramBytes = 256 * kMiB;
inline constexpr uint64_t kTestNvmeBytes = 256 * kMiB;

inline policy::TenantRules Rules(const std::string& name, uint64_t dram_limit, uint64_t nvme_limit = 0) {
  policy::TenantRules rules;
  rules.name = name;
  rules.uid = name;
  rules.tier(TierKind::kDram).limit_bytes = dram_limit;
  rules.tier(TierKind::kNvme).limit_bytes = nvme_limit;
  rules.ttl_ms = {};
  return rules;
}

inline BlockKey KeyOf(uint64_t number) {
  BlockKey key;
  for (size_t word = 0; word < 4; ++word) {
    const uint64_t value = (number + 1) * 0x9E3779B97F4A7C15ull + word * 0xC2B2AE3D27D4EB4Full;
    std::memcpy(key.bytes.data() + word * 8, &value, sizeof(value));
  }
  return key;
}

inline std::vector<Hold> Holds(const std::vector<BlockPlace>& places) {
  std::vector<Hold> holds;
  for (const BlockPlace& place : places) holds.push_back(HoldOf(place));
  return holds;
}

// Keys number, number + 1, ... as one chain.
inline std::vector<BlockKey> Chain(uint64_t first, size_t count) {
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(KeyOf(first + i));
  return keys;
}

// A wall clock that can be set: what is monotonic does not notice.
class SettableClock : public ManualClock {
 public:
  int64_t WallMs() const override { return ManualClock::WallMs() + set_by_ms_; }
  void SetWallBy(int64_t ms) { set_by_ms_ += ms; }

 private:
  int64_t set_by_ms_ = 0;
};

class EngineTest : public ::testing::Test, public EngineObserver {
 protected:
  // Call once a test, then `Restart` as often as wanted.
  void Start(std::vector<policy::TenantRules> rules, uint64_t nvme_bytes = kTestNvmeBytes) {
    rules_ = std::move(rules);
    if (nvme_bytes > 0) {
      disk_ = testing::MakeFakeDisk(nvme_bytes);
      catalog_disk_ = std::make_shared<testing::CatalogDisk>();
    }
    Boot();
  }

  // As after kill -9: memory and everything under way are gone, disk and catalog stay.
  void Restart() {
    if (file_ != nullptr) file_->CutPower();
    Shutdown();
    Boot();
  }

  void Shutdown() {
    engine_.reset();
    ShutdownNvme();
    dram_.reset();
    memory_.reset();
    executor_ = std::make_unique<testing::ManualExecutor>();
  }

  ~EngineTest() override { Shutdown(); }

  std::shared_ptr<const policy::PolicyTable> Table() const {
    policy::NodeCapacity capacity;
    capacity.bytes[TierIndex(TierKind::kDram)] = dram_bytes_;
    capacity.bytes[TierIndex(TierKind::kNvme)] = disk_ != nullptr ? nvme_capacity_bytes_ : 0;
    return policy::PolicyTable::FromRules(rules_, capacity);
  }

  void Boot() {
    memory_ = std::make_unique<testing::FakeMemory>(executor_.get());
    dram_ = std::make_unique<tier::DramTier>(memory_.get(), dram_bytes_);
    EngineDevices devices{.clock = &clock_, .dram = dram_.get()};
    if (disk_ != nullptr) BootNvme(&devices);
    engine_ = std::make_unique<CacheEngine>(options_, devices, Table());
    engine_->SetObserver(this);
    recovered_.reset();
    engine_->Recover([this](absl::Status status) { recovered_ = std::move(status); });
    ++boots_;
    if (!recovers_at_once_) return;
    Pump();
    ASSERT_TRUE(recovered_.has_value() && recovered_->ok());
  }

  // A test of several disks has its own.
  virtual void BootNvme(EngineDevices* devices) {
    auto file = testing::FakeBlockFile::Open(disk_, executor_.get());
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto nvme = tier::NvmeTier::Open(file_.get(), &clock_);
    ASSERT_TRUE(nvme.ok()) << nvme.status();
    nvme_ = *std::move(nvme);
    catalog_ = std::make_unique<testing::FakeCatalog>(executor_.get(), catalog_disk_);
    catalog_->SetSyncData([this] { return file_->Sync(); });
    devices->nvme = nvme_.get();
    devices->catalog = catalog_.get();
    if (ring_ != nullptr) ciphers_ = std::make_unique<tier::TenantCiphers>(ring_, catalog_.get());
    devices->ciphers = ciphers_.get();
  }
  virtual void ShutdownNvme() {
    nvme_.reset();
    ciphers_.reset();
    catalog_.reset();
    file_.reset();
  }

  void Pump() { executor_->RunAll(); }
  void AdvanceMs(int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += kTickMs) {
      clock_.AdvanceMs(kTickMs);
      engine_->Tick();
      Pump();
    }
  }

  NamespaceId Open(const std::string& tenant, uint8_t digest = 1, uint32_t shards = 1,
                   uint32_t shard_bytes = kTestBlockBytes) {
    const TenantId id = engine_->FindTenant(tenant);
    EXPECT_TRUE(id.valid()) << tenant;
    EXPECT_TRUE(engine_->OpenMemory(id).ok());
    NamespaceDigest bytes;
    bytes.bytes.fill(digest);
    auto ns =
        engine_->OpenNamespace(id, bytes, {.tokens_per_block = 16, .shard_count = shards, .shard_bytes = shard_bytes});
    EXPECT_TRUE(ns.ok()) << ns.status();
    return *ns;
  }

  std::byte* Data(const std::string& tenant, uint64_t offset) {
    return dram_->arena(engine_->DomainOf(engine_->FindTenant(tenant)))->data() + offset;
  }

  // --- verbs, pumped to their end
  std::vector<ReservedBlock> Reserve(GroupId group, NamespaceId ns, const std::vector<BlockKey>& keys,
                                     uint64_t request = 0, const BlockKey* parent = nullptr, uint32_t depth = 0,
                                     uint32_t shard = 0) {
    std::optional<std::vector<ReservedBlock>> answer;
    engine_->Reserve({.group = group,
                      .ns = ns,
                      .shard = shard,
                      .request = request,
                      .keys = keys,
                      .parent = parent,
                      .first_depth = depth},
                     [&](std::vector<ReservedBlock> blocks) { answer = std::move(blocks); });
    Pump();
    EXPECT_TRUE(answer.has_value()) << "Reserve never answered";
    return answer.value_or(std::vector<ReservedBlock>{});
  }

  // Stores a chain, its bytes following from the keys. Returns how many blocks became visible.
  size_t Store(const std::string& tenant, NamespaceId ns, const std::vector<BlockKey>& keys, uint64_t request = 0) {
    size_t stored = 0;
    const auto blocks = Reserve(kGroup, ns, keys, request);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].outcome != ReserveOutcome::kGranted) continue;
      std::memset(Data(tenant, blocks[i].arena_offset), keys[i].bytes[0], kTestBlockBytes);
      if (engine_->Commit(kGroup, blocks[i].reservation, 0) == CommitOutcome::kVisible) ++stored;
    }
    return stored;
  }

  // Leading blocks found, released again at once.
  uint32_t Matched(NamespaceId ns, const std::vector<BlockKey>& keys, std::vector<TierKind>* tiers = nullptr) {
    std::vector<BlockPlace> places;
    const LookupResult result = engine_->Lookup(ns, keys, 0, 0, &places);
    for (const BlockPlace& place : places) {
      if (tiers != nullptr) tiers->push_back(place.tier);
    }
    engine_->Release(Holds(places));
    return result.matched;
  }

  struct Loaded {
    size_t count = 0;
    size_t wrong = 0;  // blocks whose bytes are not their key's
    policy::Refusal reason = policy::Refusal::kNone;
    bool lost = false;
  };
  Loaded LookupAndLoad(const std::string& tenant, NamespaceId ns, const std::vector<BlockKey>& keys) {
    std::vector<BlockPlace> places;
    engine_->Lookup(ns, keys, 0, 0, &places);
    std::vector<EntryId> entries;
    for (const BlockPlace& place : places) entries.push_back(place.entry);
    std::optional<CacheEngine::LoadResult> answer;
    engine_->Load({.ns = ns, .entries = entries}, [&](CacheEngine::LoadResult result) { answer = std::move(result); });
    Pump();
    Loaded loaded;
    EXPECT_TRUE(answer.has_value()) << "Load never answered";
    if (answer.has_value()) {
      loaded = {answer->places.size(), 0, answer->reason, answer->read_failed};
      for (size_t i = 0; i < answer->places.size(); ++i) {
        const std::byte* data = Data(tenant, answer->places[i].arena_offset);
        const std::byte wanted{keys[i].bytes[0]};
        if (data[0] != wanted || data[kTestBlockBytes - 1] != wanted) ++loaded.wrong;
      }
    }
    if (answer.has_value()) engine_->Release(Holds(answer->places));
    engine_->Release(Holds(places));
    Pump();
    return loaded;
  }

  // Leading blocks pinned, or why not.
  policy::Refusal Pin(NamespaceId ns, const std::vector<BlockKey>& keys, int64_t for_ms) {
    std::vector<BlockPlace> places;
    engine_->Lookup(ns, keys, 0, 0, &places);
    const policy::Refusal refusal = engine_->Pin(Holds(places), clock_.WallMs() + for_ms);
    engine_->Release(Holds(places));
    Pump();
    return refusal;
  }

  // Pages of the disk that are filled with the byte of a key.
  size_t PagesOnDisk(const BlockKey& key) const {
    const std::string page(4096, static_cast<char>(key.bytes[0]));
    const std::span<const std::byte> disk = file_->bytes();
    size_t found = 0;
    for (size_t at = 0; at < disk.size(); at += page.size()) {
      found += std::memcmp(disk.data() + at, page.data(), page.size()) == 0;
    }
    return found;
  }

  // Written to the disk, blocks and zeros; what is written once a segment is no wear to speak of.
  uint64_t WornBytes() const {
    return file_->counts().bytes_written - nvme_->counters().segment_headers_written * kNvmeHeaderBytes;
  }

  const TenantStats StatsOf(const std::string& tenant) const {
    for (TenantStats& stats : engine_->stats().tenants) {
      if (stats.name == tenant) return stats;
    }
    ADD_FAILURE() << "no tenant " << tenant;
    return {};
  }
  TenantTierStats TierStatsOf(const std::string& tenant, TierKind tier) const {
    return StatsOf(tenant).tiers[TierIndex(tier)];
  }

  void OnDurable(GroupId, ReservationId reservation) override { durable_.push_back(reservation); }
  void OnGranted(DomainId, uint64_t, uint64_t bytes) override { granted_bytes_ += bytes; }

  void OnFillEnded(GroupId, ReservationId reservation) override { fills_ended_.push_back(reservation); }
  void OnBegunAnew(const std::string& tenant) override { begun_anew_.push_back(tenant); }
  void OnDeletion(const DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) override {
    receipts_.push_back(receipt);
    if (keeps_receipts_) return kept(true);
    untold_.push_back(std::move(kept));
  }

  static constexpr GroupId kGroup{7};

  SettableClock clock_;
  EngineOptions options_;
  std::unique_ptr<testing::ManualExecutor> executor_ = std::make_unique<testing::ManualExecutor>();
  std::shared_ptr<testing::FakeDisk> disk_;
  std::shared_ptr<testing::CatalogDisk> catalog_disk_;
  std::unique_ptr<testing::FakeMemory> memory_;
  std::unique_ptr<tier::DramTier> dram_;
  std::unique_ptr<testing::FakeBlockFile> file_;
  std::unique_ptr<tier::NvmeTier> nvme_;
  std::unique_ptr<testing::FakeCatalog> catalog_;
  std::shared_ptr<cipher::KeyRing> ring_;  // null: a node without keys; set before Start
  std::unique_ptr<tier::TenantCiphers> ciphers_;
  std::unique_ptr<CacheEngine> engine_;
  std::vector<policy::TenantRules> rules_;
  uint64_t dram_bytes_ = kTestDramBytes;  // set before Start
  uint64_t nvme_capacity_bytes_ = kTestNvmeBytes;
  std::vector<ReservationId> durable_;
  std::vector<ReservationId> fills_ended_;
  std::vector<DeletionReceipt> receipts_;
  std::vector<std::string> begun_anew_;
  bool keeps_receipts_ = true;                          // at once; else the test says when, or not
  std::vector<absl::AnyInvocable<void(bool)>> untold_;  // of receipts that were not kept at once
  uint64_t granted_bytes_ = 0;
  int boots_ = 0;
  bool recovers_at_once_ = true;  // false: while the test pumps
  std::optional<absl::Status> recovered_;
};

}  // namespace kvartal::engine
