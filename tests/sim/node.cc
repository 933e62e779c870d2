#include "tests/sim/node.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/cipher/node_keys.h"
#include "daemon/tier/nvme_disk.h"

namespace kvartal::sim {

Node::Node(const Plan& plan, engine::EngineObserver* observer, std::function<void(SlotId)> on_catalog_delete)
    : plan_(plan),
      observer_(observer),
      on_catalog_delete_(std::move(on_catalog_delete)),
      engine_clock_(&clock_, plan.planted) {
  if (plan.nvme_bytes == 0) return;
  disk_ = testing::MakeFakeDisk(plan.nvme_bytes);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  if (!plan.encrypts) return;
  ring_ = std::make_shared<cipher::KeyRing>();
  SetKeys({1});
}

Node::~Node() {
  if (file_ != nullptr) file_->CutPower();
  Shutdown();
}

void Node::Boot(std::vector<policy::TenantRules> rules) {
  ++boots_;
  memory_queue_ = std::make_unique<testing::ManualExecutor>();
  disk_queue_ = std::make_unique<testing::ManualExecutor>();
  catalog_queue_ = std::make_unique<testing::ManualExecutor>();
  memory_ = std::make_unique<testing::FakeMemory>(memory_queue_.get());
  memory_->SetQueueMax(plan_.memory_queue_max);
  lying_memory_ = std::make_unique<LyingMemory>(memory_.get(), plan_.planted, memory_queue_.get());
  dram_ = std::make_unique<tier::DramTier>(lying_memory_.get(), plan_.dram_bytes);
  capacity_.bytes[TierIndex(TierKind::kDram)] = plan_.dram_bytes;
  engine::EngineDevices devices{.clock = &engine_clock_, .dram = dram_.get()};
  if (disk_ != nullptr) {
    BootNvme();
    devices.nvme = nvme_.get();
    devices.catalog = watched_catalog_.get();
    devices.ciphers = ciphers_.get();
  }
  boot_ms_ = clock_.WallMs();
  boot_date_ms_ = engine_clock_.WallMs();
  if (catalog_ != nullptr) {
    boot_date_ms_ = std::max(boot_date_ms_, catalog_->kept_time_ms());
    for (const tier::ErasureRecord& erasure : catalog_->open_erasures())
      boot_date_ms_ = std::max(boot_date_ms_, erasure.before_wall_ms);
  }
  engine_ = std::make_unique<engine::CacheEngine>(
      engine::EngineOptions{.eviction = plan_.eviction, .removed_grace_ms = plan_.removed_grace_ms}, devices,
      policy::PolicyTable::FromRules(std::move(rules), capacity_));
  engine_->SetObserver(observer_);
  recovered_ = false;
  engine_->Recover([this](const absl::Status&) { recovered_ = true; });
}

void Node::BootNvme() {
  auto file = testing::FakeBlockFile::Open(disk_, disk_queue_.get());
  KV_CHECK(file.ok());
  file_ = *std::move(file);
  file_->SetQueueMax(plan_.disk_queue_max);
  file_->SetFaultRates(plan_.disk_faults, plan_.seed + boots_);
  file_->SetReorder(plan_.reorder, plan_.seed + boots_);
  lying_file_ = std::make_unique<LyingFile>(file_.get(), plan_.planted, disk_queue_.get());
  std::vector<std::shared_ptr<tier::NvmeDisk>> disks;
  for (uint32_t i = 0; i < plan_.disks; ++i) {
    const uint64_t begin = i * kDiskBytesMin;
    const uint64_t end = i + 1 < plan_.disks ? begin + kDiskBytesMin : lying_file_->size_bytes();
    disk_parts_.push_back(std::make_unique<FilePart>(lying_file_.get(), begin, end - begin));
    auto disk = tier::NvmeDisk::Open(disk_parts_.back().get(), &engine_clock_);
    KV_CHECK(disk.ok());
    disks.push_back(*std::move(disk));
  }
  nvme_ = std::make_unique<tier::NvmeTier>(std::move(disks));
  capacity_.bytes[TierIndex(TierKind::kNvme)] = nvme_->stats().capacity_bytes;
  catalog_ = std::make_unique<testing::FakeCatalog>(catalog_queue_.get(), catalog_disk_);
  catalog_->SetQueueMax(plan_.catalog_queue_max);
  watched_catalog_ =
      std::make_unique<WatchedCatalog>(catalog_.get(), plan_.planted, catalog_queue_.get(), on_catalog_delete_);
  if (ring_ != nullptr) ciphers_ = std::make_unique<tier::TenantCiphers>(ring_, watched_catalog_.get());
}

void Node::Crash(CrashKind kind, Random* random) {
  if (file_ != nullptr) {
    file_->Kill(random->Next());
    if (kind == CrashKind::kPowerCut) file_->LoseRecentWrites(random->Next());
  }
  Shutdown();
  if (kind == CrashKind::kPowerCut) catalog_disk_->records = synced_records_;
  if (kind != CrashKind::kLosesCatalog) return;
  // Salts lie in a file of their own.
  auto salts = std::move(catalog_disk_->salts);
  catalog_disk_ = std::make_shared<testing::CatalogDisk>();
  catalog_disk_->salts = std::move(salts);
}

void Node::Shutdown() {
  engine_.reset();
  nvme_.reset();
  ciphers_.reset();
  watched_catalog_.reset();
  catalog_.reset();
  disk_parts_.clear();
  lying_file_.reset();
  file_.reset();
  dram_.reset();
  lying_memory_.reset();
  memory_.reset();
  memory_queue_.reset();
  disk_queue_.reset();
  catalog_queue_.reset();
}

void Node::ApplyPolicy(std::vector<policy::TenantRules> rules) {
  engine_->ApplyPolicy(policy::PolicyTable::FromRules(std::move(rules), capacity_));
}

void Node::SetKeys(const std::set<uint32_t>& ids) {
  std::string text;
  for (const uint32_t id : ids) absl::StrAppend(&text, id, " ", std::string(2 * cipher::kKeyBytes, 'a'), "\n");
  const auto keys = cipher::NodeKeys::Parse(std::as_bytes(std::span(text)));
  KV_CHECK(keys.ok());
  ring_->Set(*keys);
}

void Node::CompleteSome(Random* random) {
  if (random->Chance(plan_.memory_speed)) memory_queue_->RunOne();
  if (random->Chance(plan_.disk_speed)) disk_queue_->RunOne();
  if (random->Chance(plan_.catalog_speed)) catalog_queue_->RunOne();
}

void Node::CompleteOne(Random* random) {
  testing::ManualExecutor* const queues[] = {memory_queue_.get(), disk_queue_.get(), catalog_queue_.get()};
  const uint64_t first = random->Below(3);
  for (uint64_t i = 0; i < 3; ++i) {
    if (queues[(first + i) % 3]->RunOne()) return;
  }
}

void Node::CompleteAll() {
  size_t ran;
  do {
    ran = memory_queue_->RunAll() + disk_queue_->RunAll() + catalog_queue_->RunAll();
  } while (ran > 0);
}

bool Node::nvme_offline() const {
  if (nvme_ == nullptr) return false;
  const std::vector<tier::DiskStats> disks = nvme_->disk_stats();
  return std::any_of(disks.begin(), disks.end(),
                     [](const tier::DiskStats& disk) { return disk.state == tier::DeviceState::kOffline; });
}

bool Node::MayBeFound(const NamespaceDigest& digest, const BlockKey& key) const {
  if (!catalog_disk_->complete) return true;
  return std::any_of(catalog_disk_->records.begin(), catalog_disk_->records.end(), [&](const auto& record) {
    return record.second.identity.digest == digest && record.second.identity.key == key;
  });
}

void Node::SyncCatalog() { synced_records_ = catalog_disk_->records; }

}  // namespace kvartal::sim
