// The machine of a simulation: the real engine and the real tiers over fake devices, each with a queue of its own that
// the simulation lets through one completion at a time. Confined to the thread of the simulation.
// Invariants: what outlives a crash is the disks, their catalogs' folders, the file of keys and the wall clock, nothing
// else. A SlotId outside is a place as if every disk were there, so that it is the same in every boot.
#pragma once

#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "daemon/engine/cache_engine.h"
#include "daemon/tier/disk_catalogs.h"
#include "daemon/tier/dram_tier.h"
#include "daemon/tier/nvme_tier.h"
#include "daemon/tier/tenant_ciphers.h"
#include "tests/sim/disk.h"
#include "tests/sim/lying_devices.h"
#include "tests/sim/plan.h"
#include "tests/sim/random.h"
#include "tests/support/fake_memory.h"
#include "tests/support/manual_executor.h"

namespace kvartal::sim {

class Node {
 public:
  enum class CrashKind : uint8_t { kKill, kPowerCut, kLosesCatalog };
  // From one boot to the next.
  struct DisksChanged {
    tier::DiskSet left = tier::kNoDisk, back = tier::kNoDisk, replaced = tier::kNoDisk;
  };

  Node(const Plan& plan, engine::EngineObserver* observer, std::function<void(SlotId)> on_catalog_delete);
  ~Node();

  // Starts the engine; recovery goes on as the devices are let through.
  void Boot(std::vector<policy::TenantRules> rules);
  // The disks whose catalogs are lost.
  tier::DiskSet Crash(CrashKind kind, Random* random);
  // While it is down disks go and come back as they went, and one may be an empty one in the place of another. One at
  // least is there.
  DisksChanged ChangeDisks(Random* random);
  bool recovered() const { return recovered_; }

  void ApplyPolicy(std::vector<policy::TenantRules> rules);
  // The wall clock is that much off from now on. Dates follow at the next boot.
  void SkewWall(int64_t ms) { engine_clock_.SkewWall(ms); }
  // What the engine takes for the date: the wall clock of its start, or the last date on disk when that is later, and
  // the time since.
  int64_t DateMs() const { return boot_date_ms_ + clock_.WallMs() - boot_ms_; }
  int64_t up_ms() const { return clock_.WallMs() - boot_ms_; }
  // What the file of keys says, by their numbers.
  void SetKeys(const std::set<uint32_t>& ids);
  // One virtual instant later.
  void AdvanceMs(int64_t ms);

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
  // Of those that are there; null on a node without NVMe.
  Disk* AnyDisk(Random* random);
  void EndTrouble();
  void FailLost();
  size_t disk_backlog() const;
  // A disk of it is.
  bool nvme_offline() const;
  tier::DiskSet present() const { return present_; }
  uint32_t absent_disks() const { return static_cast<uint32_t>(std::popcount(plan_.all_disks() & ~present_)); }
  bool IsPresent(SlotId slot) const { return (present_ & tier::SetOfDisk(DiskOf(slot))) != 0; }
  uint32_t DiskOf(SlotId slot) const { return static_cast<uint32_t>(all_slots_->Find(slot)->disk); }
  // Another that is there is healthy, and was never told to fail.
  bool AnotherIsSound(const Disk* disk) const;
  // Of transfers that it has accepted, and not ended.
  uint64_t QueuedBytes(const Disk& disk) const;
  // From there to the end of its disk.
  std::span<const std::byte> BytesAt(SlotId slot) const;
  const std::vector<std::unique_ptr<Disk>>& disks() const { return disks_; }
  // By the next life: records of that block, whoever's it is, in the folders of the catalogs; one that sends it to the
  // headers counts, too.
  size_t TimesFound(const NamespaceDigest& digest, const BlockKey& key) const;
  // The slot whose record was just persisted, while the callback that says so runs.
  std::optional<SlotId> recorded() const;

 private:
  void BootNvme();
  void Shutdown();
  // Of a place in the tier as it is now.
  SlotId HomeOf(SlotId slot) const;
  std::vector<testing::ManualExecutor*> Queues() const;

  const Plan& plan_;
  engine::EngineObserver* const observer_;
  const std::function<void(SlotId)> on_catalog_delete_;
  ManualClock clock_;
  SimClock engine_clock_{&clock_, Planted::kNothing};
  std::vector<std::unique_ptr<Disk>> disks_;  // those that are not there, too
  std::optional<tier::DiskMap> all_slots_;    // of all of them
  tier::DiskSet present_ = tier::kNoDisk;

  std::unique_ptr<testing::ManualExecutor> memory_queue_;
  std::unique_ptr<testing::FakeMemory> memory_;
  std::unique_ptr<LyingMemory> lying_memory_;
  std::unique_ptr<tier::DramTier> dram_;
  std::vector<Disk*> open_;  // by their place in the tier
  std::unique_ptr<tier::NvmeTier> nvme_;
  std::unique_ptr<tier::DiskCatalogs> catalog_;
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
