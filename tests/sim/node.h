// The machine of a simulation: the real engine and the real tiers over fake devices, each with a queue of its own that
// the simulation lets through one completion at a time. Confined to the thread of the simulation.
// Invariant: what outlives a crash is the disk, the catalog's folder, the file of keys and the wall
// clock, nothing else.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "daemon/engine/cache_engine.h"
#include "daemon/tier/dram_tier.h"
#include "daemon/tier/nvme_tier.h"
#include "daemon/tier/tenant_ciphers.h"
#include "tests/sim/file_part.h"
#include "tests/sim/lying_devices.h"
#include "tests/sim/plan.h"
#include "tests/sim/random.h"
#include "tests/support/fake_block_file.h"
#include "tests/support/fake_catalog.h"
#include "tests/support/fake_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::sim {

class Node {
 public:
  enum class CrashKind : uint8_t { kKill, kPowerCut, kLosesCatalog };

  Node(const Plan& plan, engine::EngineObserver* observer, std::function<void(SlotId)> on_catalog_delete);
  ~Node();

  // Starts the engine; recovery goes on as the devices are let through.
  void Boot(std::vector<policy::TenantRules> rules);
  void Crash(CrashKind kind, Random* random);
  bool recovered() const { return recovered_; }

  void ApplyPolicy(std::vector<policy::TenantRules> rules);
  // The wall clock is that much off from now on. Dates follow at the next boot.
  void SkewWall(int64_t ms) { engine_clock_.SkewWall(ms); }
  // What the engine takes for the date: the wall clock of its start, or the last date on disk when that is later, and
  // the time since.
  int64_t DateMs() const { return boot_date_ms_ + clock_.WallMs() - boot_ms_; }
  // What the file of keys says, by their numbers.
  void SetKeys(const std::set<uint32_t>& ids);
  // One virtual instant later.
  void AdvanceMs(int64_t ms) { clock_.AdvanceMs(ms); }

  // Each device may finish something, by its speed.
  void CompleteSome(Random* random);
  // One device finishes one thing, if it has any under way.
  void CompleteOne(Random* random);
  // All devices finish all they have.
  void CompleteAll();
  // The catalog is safe against a power cut up to here.
  void SyncCatalog();

  engine::CacheEngine& engine() { return *engine_; }
  const Clock& clock() const { return engine_clock_; }
  tier::DramTier& dram() { return *dram_; }
  testing::FakeMemory& memory() { return *memory_; }
  // Null on a node without NVMe.
  tier::NvmeTier* nvme() { return nvme_.get(); }
  testing::FakeBlockFile* file() { return file_.get(); }
  testing::FakeCatalog* catalog() { return catalog_.get(); }
  size_t disk_backlog() const { return disk_queue_->queued(); }
  // A disk of it is.
  bool nvme_offline() const;
  // By the next life: the catalog's folder has a record of that block, whoever's it is, or sends it to the headers.
  bool MayBeFound(const NamespaceDigest& digest, const BlockKey& key) const;
  WatchedCatalog* watched_catalog() { return watched_catalog_.get(); }

 private:
  void BootNvme();
  void Shutdown();

  const Plan& plan_;
  engine::EngineObserver* const observer_;
  const std::function<void(SlotId)> on_catalog_delete_;
  ManualClock clock_;
  SimClock engine_clock_{&clock_, Planted::kNothing};
  std::shared_ptr<testing::FakeDisk> disk_;
  std::shared_ptr<testing::CatalogDisk> catalog_disk_;
  std::map<uint32_t, tier::BlockHeader> synced_records_;

  std::unique_ptr<testing::ManualExecutor> memory_queue_, disk_queue_, catalog_queue_;
  std::unique_ptr<testing::FakeMemory> memory_;
  std::unique_ptr<LyingMemory> lying_memory_;
  std::unique_ptr<tier::DramTier> dram_;
  std::unique_ptr<testing::FakeBlockFile> file_;
  std::unique_ptr<LyingFile> lying_file_;
  std::vector<std::unique_ptr<FilePart>> disk_parts_;  // one after another in the file
  std::unique_ptr<tier::NvmeTier> nvme_;
  std::unique_ptr<testing::FakeCatalog> catalog_;
  std::unique_ptr<WatchedCatalog> watched_catalog_;
  std::shared_ptr<cipher::KeyRing> ring_;  // null: blocks of this plan are never encrypted
  std::unique_ptr<tier::TenantCiphers> ciphers_;
  std::unique_ptr<engine::CacheEngine> engine_;
  policy::NodeCapacity capacity_;
  bool recovered_ = false;
  uint64_t boots_ = 0;
  int64_t boot_ms_ = 0;
  int64_t boot_date_ms_ = 0;
};

}  // namespace kvartal::sim
