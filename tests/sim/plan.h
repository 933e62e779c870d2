// What one simulation is made of: machine, tenants, layouts, faults and the mix of events, all drawn from the seed.
// Each seed leaves things out and overdoes others (swarm testing), so that many together meet what one mix never would.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/block/model_layout.h"
#include "daemon/policy/policy_table.h"
#include "daemon/tier/disk_set.h"
#include "tests/sim/random.h"
#include "tests/support/fake_block_file.h"

namespace kvartal::sim {

// A device that lies: positive controls, each of which the simulator has to find.
enum class Planted : uint8_t {
  kNothing,
  kOverlappingMemory,  // two domains are handed the same memory
  kPunchDoesNothing,   // memory taken back stays there
  kLosesPuts,          // the catalog acknowledges records it does not keep
  kLosesDeletes,       // and deletes: harmless, by the contract of the catalog
  kLosesTombstones,    // and tombstones
  kForgetsRecords,     // the catalog hands out only half of what it keeps
  kLosesWrites,        // the disk acknowledges before it writes, and sometimes never does
  kStaleReads,         // the disk answers with what was there before the last write
  kSlowClock,          // the engine's clock stands still while time goes on
  kSkipsZeros,         // the disk acknowledges zeros that it does not write
};
inline constexpr std::array kAllPlanted = {
    Planted::kOverlappingMemory, Planted::kPunchDoesNothing, Planted::kLosesPuts,  Planted::kLosesTombstones,
    Planted::kForgetsRecords,    Planted::kLosesWrites,      Planted::kStaleReads, Planted::kSlowClock,
    Planted::kSkipsZeros,        Planted::kLosesDeletes};
const char* PlantedName(Planted planted);
// kNothing for a name nobody knows.
Planted PlantedByName(const std::string& name);

enum class EventKind : uint8_t {
  kReserve,
  kFinish,
  kLookup,
  kLoad,
  kRelease,
  kPin,
  kHostile,
  kGroupEnd,
  kNamespace,
  kAdvance,
  kComplete,
  kPolicy,
  kTenantLife,
  kDrop,
  kTrouble,
  kCrash,
  kSettle,
};
inline constexpr size_t kEventKinds = 17;

inline constexpr uint64_t kDiskBytesMin = 20 * kMiB;  // of several: each has a segment, and a part of one

struct TenantPlan {
  uint32_t groups = 1;
  bool hoards = false;     // releases next to nothing
  bool abandons = false;   // commits next to nothing
  bool scribbles = false;  // writes all over its own memory
};

struct Plan {
  uint64_t seed = 0;
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;  // 0: a node without NVMe
  uint32_t disks = 1;       // that those are
  std::vector<TenantPlan> tenants;
  std::vector<ModelLayout> layouts;  // of namespaces; every tenant opens all of them
  bool large_blocks = false;         // two tenants, and two sizes that each can fill the disk
  std::array<uint32_t, kEventKinds> weights{};
  testing::DiskFaultRates disk_faults;
  tier::DiskSet faulty_disks = tier::kAllDisks;  // that have those
  bool reorder = false;
  bool power_cuts = false;     // a crash may also lose what was not synced
  bool loses_catalog = false;  // a crash may also cost the catalog
  uint32_t populate_failures_percent = 0;
  // Chance that an event lets one completion of a device through, in percent: small is a slow device.
  uint32_t memory_speed = 0, disk_speed = 0, catalog_speed = 0;
  size_t memory_queue_max = 0, disk_queue_max = 0, catalog_queue_max = 0;
  uint32_t chain_length_max = 0;
  bool encrypts = false;      // some policies want blocks on NVMe encrypted, now and then
  bool keys_go = false;       // the node loses keys, and gets others
  uint64_t write_budget = 0;  // bytes a second that may be written to NVMe; 0: any amount
  std::string eviction;
  int64_t removed_grace_ms = 0;
  Planted planted = Planted::kNothing;

  bool disk_lies() const {
    return disk_faults.io_error + disk_faults.short_transfer + disk_faults.torn_write + disk_faults.bit_flip +
               disk_faults.never_completes + disk_faults.no_space >
           0;
  }
  bool disk_lies(uint32_t disk) const { return disk_lies() && (faulty_disks & tier::SetOfDisk(disk)) != 0; }
  tier::DiskSet all_disks() const { return tier::SetOfDisk(disks) - 1; }
  uint64_t disk_bytes(uint32_t disk) const {
    return disk + 1 < disks ? kDiskBytesMin : nvme_bytes - (disks - 1) * kDiskBytesMin;
  }
};

Plan MakePlan(uint64_t seed, Planted planted);
// Rules a tenant of this plan may have: drawn anew at the start and at every change of policy.
policy::TenantRules DrawRules(const Plan& plan, const std::string& name, uint32_t uid, Random* random);
std::string Describe(const Plan& plan);

}  // namespace kvartal::sim
