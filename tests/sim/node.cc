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
  present_ = plan.all_disks();
  if (plan.nvme_bytes == 0) return;
  std::vector<uint64_t> sizes;
  for (uint32_t place = 0; place < plan.disks; ++place) {
    disks_.push_back(std::make_unique<Disk>(plan, place));
    sizes.push_back(plan.disk_bytes(place));
  }
  all_slots_.emplace(sizes);
  if (!plan.encrypts) return;
  ring_ = std::make_shared<cipher::KeyRing>();
  SetKeys({1});
}

Node::~Node() {
  for (Disk* const disk : open_) disk->CutPower();
  Shutdown();
}

void Node::Boot(std::vector<policy::TenantRules> rules) {
  ++boots_;
  memory_queue_ = std::make_unique<testing::ManualExecutor>();
  memory_ = std::make_unique<testing::FakeMemory>(memory_queue_.get());
  memory_->SetQueueMax(plan_.memory_queue_max);
  lying_memory_ = std::make_unique<LyingMemory>(memory_.get(), plan_.planted, memory_queue_.get());
  dram_ = std::make_unique<tier::DramTier>(lying_memory_.get(), plan_.dram_bytes);
  capacity_.bytes[TierIndex(TierKind::kDram)] = plan_.dram_bytes;
  engine::EngineDevices devices{.clock = &engine_clock_, .dram = dram_.get()};
  if (!disks_.empty()) {
    BootNvme();
    devices.nvme = nvme_.get();
    devices.catalog = watched_catalog_.get();
    devices.ciphers = ciphers_.get();
    devices.absent_disks = absent_disks();
  }
  boot_ms_ = clock_.WallMs();
  boot_date_ms_ = engine_clock_.WallMs();
  if (catalog_ != nullptr) {
    boot_date_ms_ = std::max(boot_date_ms_, catalog_->kept_time_ms());
    for (const tier::ErasureRecord& erasure : catalog_->open_erasures())
      boot_date_ms_ = std::max(boot_date_ms_, erasure.before_wall_ms);
  }
  engine_ =
      std::make_unique<engine::CacheEngine>(engine::EngineOptions{.eviction = plan_.eviction,
                                                                  .nvme_write_bytes_per_second = plan_.write_budget,
                                                                  .removed_grace_ms = plan_.removed_grace_ms},
                                            devices, policy::PolicyTable::FromRules(std::move(rules), capacity_));
  engine_->SetObserver(observer_);
  recovered_ = false;
  engine_->Recover([this](const absl::Status&) { recovered_ = true; });
}

// As the daemon does it (daemon/process/nvme_stack.cc).
void Node::BootNvme() {
  std::vector<std::shared_ptr<tier::NvmeDisk>> disks;
  std::vector<std::unique_ptr<tier::NvmeCatalog>> catalogs;
  for (uint32_t place = 0; place < disks_.size(); ++place) {
    if ((present_ & tier::SetOfDisk(place)) == 0) continue;
    Disk* const opened = open_.emplace_back(disks_[place].get());
    opened->Open(boots_);
    opened->NoteTime(clock_.WallMs());
    auto disk = tier::NvmeDisk::Open(opened->file(), &engine_clock_);
    KV_CHECK(disk.ok());
    disks.push_back(*std::move(disk));
    catalogs.push_back(opened->OpenCatalog());
  }
  nvme_ = std::make_unique<tier::NvmeTier>(std::move(disks));
  // At the first start every disk is there. One that is absent counts all the same (decision 0026).
  if (boots_ == 1) capacity_.bytes[TierIndex(TierKind::kNvme)] = nvme_->stats().capacity_bytes;
  catalog_ = std::make_unique<tier::DiskCatalogs>(std::move(catalogs), nvme_->map());
  watched_catalog_ = std::make_unique<WatchedCatalog>(catalog_.get(), plan_.planted, open_.front()->catalog_executor(),
                                                      [this](SlotId slot) { on_catalog_delete_(HomeOf(slot)); });
  if (ring_ != nullptr) ciphers_ = std::make_unique<tier::TenantCiphers>(ring_, watched_catalog_.get());
}

tier::DiskSet Node::Crash(CrashKind kind, Random* random) {
  for (Disk* const disk : open_) disk->Kill(kind == CrashKind::kPowerCut, random);
  const std::vector<Disk*> killed = open_;
  const Disk* const first = AnyDisk(random);
  Shutdown();
  tier::DiskSet lost = tier::kNoDisk;
  for (Disk* const disk : killed) {
    if (kind == CrashKind::kPowerCut) disk->LoseRecentRecords();
    if (kind != CrashKind::kLosesCatalog || (disk != first && random->Chance(50))) continue;
    disk->LoseCatalog();
    lost |= tier::SetOfDisk(disk->place());
  }
  return lost;
}

Node::DisksChanged Node::ChangeDisks(Random* random) {
  DisksChanged changed;
  if (plan_.disks < 2) return changed;
  const tier::DiskSet absent = plan_.all_disks() & ~present_;
  for (uint32_t place = 0; place < plan_.disks; ++place) {
    if ((absent & tier::SetOfDisk(place)) != 0 && random->Chance(60)) changed.back |= tier::SetOfDisk(place);
  }
  present_ |= changed.back;
  const tier::DiskSet going = tier::SetOfDisk(random->Below(plan_.disks));
  if (random->Chance(25) && (present_ & ~going) != tier::kNoDisk) {
    changed.left = present_ & going & ~changed.back;
    present_ &= ~changed.left;
  }
  const auto place = static_cast<uint32_t>(random->Below(plan_.disks));
  if (random->Chance(8) && (present_ & tier::SetOfDisk(place)) != 0) {
    disks_[place]->Replace();
    changed.replaced = tier::SetOfDisk(place);
    changed.back &= ~changed.replaced;
  }
  return changed;
}

void Node::Shutdown() {
  engine_.reset();
  nvme_.reset();
  ciphers_.reset();
  watched_catalog_.reset();
  catalog_.reset();
  for (Disk* const disk : open_) disk->Close();
  open_.clear();
  dram_.reset();
  lying_memory_.reset();
  memory_.reset();
  memory_queue_.reset();
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

void Node::AdvanceMs(int64_t ms) {
  clock_.AdvanceMs(ms);
  // Of one disk alone that is told by the events.
  if (plan_.disks < 2) return;
  for (Disk* const disk : open_) disk->NoteTime(clock_.WallMs());
}

std::vector<testing::ManualExecutor*> Node::Queues() const {
  std::vector<testing::ManualExecutor*> queues = {memory_queue_.get()};
  for (Disk* const disk : open_) {
    queues.push_back(disk->disk_queue());
    queues.push_back(disk->catalog_queue());
  }
  return queues;
}

void Node::CompleteSome(Random* random) {
  if (random->Chance(plan_.memory_speed)) memory_queue_->RunOne();
  for (Disk* const disk : open_) {
    if (random->Chance(plan_.disk_speed)) disk->disk_queue()->RunOne();
    if (random->Chance(plan_.catalog_speed)) disk->catalog_queue()->RunOne();
  }
}

void Node::CompleteOne(Random* random) {
  const std::vector<testing::ManualExecutor*> queues = Queues();
  const uint64_t first = random->Below(queues.size());
  for (uint64_t i = 0; i < queues.size(); ++i) {
    if (queues[(first + i) % queues.size()]->RunOne()) return;
  }
}

void Node::CompleteAll() {
  size_t ran;
  do {
    ran = 0;
    for (testing::ManualExecutor* const queue : Queues()) ran += queue->RunAll();
  } while (ran > 0);
}

// --- disks

Disk* Node::AnyDisk(Random* random) {
  if (open_.empty()) return nullptr;
  return open_[open_.size() > 1 ? random->Below(open_.size()) : 0];
}

void Node::EndTrouble() {
  for (Disk* const disk : open_) disk->EndTrouble();
}

void Node::FailLost() {
  for (Disk* const disk : open_) disk->FailLost();
}

size_t Node::disk_backlog() const {
  size_t backlog = 0;
  for (const Disk* const disk : open_) backlog = std::max(backlog, disk->backlog());
  return backlog;
}

SlotId Node::HomeOf(SlotId slot) const {
  const tier::DiskMap::Place place = *nvme_->map().Find(slot);
  const auto home =
      std::find_if(disks_.begin(), disks_.end(), [&](const auto& disk) { return disk.get() == open_[place.disk]; });
  return *all_slots_->SlotAt(static_cast<size_t>(home - disks_.begin()), place.slot);
}

std::optional<SlotId> Node::recorded() const {
  const std::optional<SlotId> slot = watched_catalog_->recorded();
  return slot.has_value() ? std::optional(HomeOf(*slot)) : std::nullopt;
}

std::span<const std::byte> Node::BytesAt(SlotId slot) const {
  const tier::DiskMap::Place place = *all_slots_->Find(slot);
  return disks_[place.disk]->bytes().subspan(place.slot.value() * kSlotAlignBytes);
}

uint64_t Node::QueuedBytes(const Disk& disk) const {
  const auto open = std::find(open_.begin(), open_.end(), &disk);
  return nvme_->disk_stats()[static_cast<size_t>(open - open_.begin())].queued_bytes;
}

bool Node::AnotherIsSound(const Disk* disk) const {
  const std::vector<tier::DiskStats> stats = nvme_->disk_stats();
  for (size_t i = 0; i < open_.size(); ++i) {
    const bool sound = !plan_.disk_lies(open_[i]->place()) && stats[i].state == tier::DeviceState::kHealthy;
    if (open_[i] != disk && sound) return true;
  }
  return false;
}

bool Node::nvme_offline() const {
  if (nvme_ == nullptr) return false;
  const std::vector<tier::DiskStats> disks = nvme_->disk_stats();
  return std::any_of(disks.begin(), disks.end(),
                     [](const tier::DiskStats& disk) { return disk.state == tier::DeviceState::kOffline; });
}

size_t Node::TimesFound(const NamespaceDigest& digest, const BlockKey& key) const {
  size_t times = 0;
  for (const Disk* const disk : open_) {
    const testing::CatalogDisk& folder = disk->records();
    times += folder.complete ? 0 : 1;
    times += static_cast<size_t>(std::count_if(folder.records.begin(), folder.records.end(), [&](const auto& record) {
      return record.second.identity.digest == digest && record.second.identity.key == key;
    }));
  }
  return times;
}

void Node::SyncCatalog() {
  for (Disk* const disk : open_) disk->SyncCatalog();
}

}  // namespace kvartal::sim
