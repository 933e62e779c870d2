#include "tests/sim/plan.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/units.h"

namespace kvartal::sim {
namespace {

constexpr uint32_t kShardBytes[] = {4096, 4096, 5000, 8192, 16384, 32768};
constexpr uint32_t kShardCounts[] = {1, 1, 1, 2, 3};
constexpr uint32_t kSpeeds[] = {5, 20, 60, 95};
constexpr size_t kQueues[] = {0, 0, 0, 4, 32};
constexpr int64_t kGracesMs[] = {500, 3'000, 20'000, kRemovedGraceMs};

// In a thousand events, before the swarm turns them up and down.
constexpr std::array<uint32_t, kEventKinds> kUsualWeights = {140, 200, 240, 90, 110, 15, 25, 6, 3,
                                                             70,  90,  8,   2,  2,   8,  2,  1};
constexpr uint32_t kTurns[] = {1, 1, 1, 3, 10};  // of three

void DrawDisk(Plan* plan, Random* random) {
  if (random->Chance(20)) return;  // no NVMe
  plan->nvme_bytes = random->Between(18, 60) * kMiB;
  plan->reorder = random->Chance(70);
  plan->disk_queue_max = random->Pick(kQueues);
  plan->catalog_queue_max = random->Pick(kQueues);
  plan->power_cuts = random->Chance(25);
  plan->loses_catalog = random->Chance(15);
  if (random->Chance(50)) return;  // a disk that is sound
  for (uint32_t* rate : {&plan->disk_faults.io_error, &plan->disk_faults.short_transfer, &plan->disk_faults.torn_write,
                         &plan->disk_faults.bit_flip}) {
    if (random->Chance(60)) *rate = static_cast<uint32_t>(random->Between(100, 300));
  }
  if (random->Chance(20)) plan->disk_faults.never_completes = 100;
}

// Drawn apart: the rest of a plan stays as it is.
void AddMoreFaults(Plan* plan) {
  Random random(plan->seed ^ 0xfa017);
  if (!plan->disk_lies()) return;
  if (random.Chance(40)) plan->disk_faults.no_space = static_cast<uint32_t>(random.Between(50, 200));
  if (random.Chance(40)) plan->disk_faults.delayed = static_cast<uint32_t>(random.Between(100, 1000));
}

// Slots of another order of size, and segments enough to quarrel about. Drawn apart: the rest of a plan stays as it is.
void AddLargeBlocks(Plan* plan) {
  Random random(plan->seed ^ 0xb16b10c);
  if (plan->nvme_bytes == 0 || !random.Chance(25)) return;
  plan->layouts.push_back({16, 1, 128 * 1024});
  plan->nvme_bytes = 64 * kMiB + kNvmeDataStartBytes;
  if (plan->planted != Planted::kNothing || !random.Chance(50)) return;
  // Two sizes that each can fill the disk, and guarantees of more than a segment.
  plan->layouts = {{16, 1, 48 * 1024}, plan->layouts.back()};
  plan->tenants.resize(2);
  plan->large_blocks = true;
}

// Drawn apart, as above.
void AddEncryption(Plan* plan) {
  Random random(plan->seed ^ 0xc1b4e7);
  if (plan->nvme_bytes == 0 || plan->planted != Planted::kNothing) return;
  plan->encrypts = random.Chance(35);
  plan->keys_go = plan->encrypts && random.Chance(40);
}

// Drawn apart, as above.
void AddWriteBudget(Plan* plan) {
  Random random(plan->seed ^ 0xb0d9e7);
  if (plan->nvme_bytes == 0 || plan->planted != Planted::kNothing || !random.Chance(25)) return;
  plan->write_budget = random.Chance(50) ? 1 : random.Between(1, 64) * kKiB;
}

// Several disks, the last one the largest; mostly one alone of them is sick. Drawn apart, as above.
void SplitDisk(Plan* plan) {
  Random random(plan->seed ^ 0xd15c5);
  if (plan->nvme_bytes == 0 || plan->large_blocks || plan->planted != Planted::kNothing || !random.Chance(40)) return;
  plan->disks = static_cast<uint32_t>(random.Between(2, 3));
  plan->nvme_bytes = std::max(plan->nvme_bytes, plan->disks * kDiskBytesMin);
  if (random.Chance(70)) plan->faulty_disks = tier::SetOfDisk(random.Below(plan->disks));
}

// What a lying device needs to be found out at all.
void MakeRoomFor(Planted planted, Plan* plan, Random* random) {
  plan->planted = planted;
  if (planted == Planted::kNothing) return;
  if (plan->nvme_bytes == 0) plan->nvme_bytes = 40 * kMiB;
  plan->disk_faults = {};
  plan->power_cuts = plan->loses_catalog = false;
  while (plan->tenants.size() < 3) plan->tenants.push_back({.groups = 2});
  for (TenantPlan& tenant : plan->tenants) tenant.scribbles = tenant.abandons = false;
  for (const EventKind kind : {EventKind::kDrop, EventKind::kCrash, EventKind::kSettle, EventKind::kAdvance}) {
    uint32_t& weight = plan->weights[static_cast<size_t>(kind)];
    weight = std::max<uint32_t>(weight, kUsualWeights[static_cast<size_t>(kind)] * 3);
  }
  plan->catalog_speed = random->Pick(kSpeeds);
}

}  // namespace

const char* PlantedName(Planted planted) {
  constexpr const char* kNames[] = {"nothing",       "overlapping-memory", "punch-does-nothing", "loses-puts",
                                    "loses-deletes", "loses-tombstones",   "forgets-records",    "loses-writes",
                                    "stale-reads",   "slow-clock",         "skips-zeros"};
  return kNames[static_cast<size_t>(planted)];
}

Planted PlantedByName(const std::string& name) {
  for (const Planted planted : kAllPlanted) {
    if (name == PlantedName(planted)) return planted;
  }
  return Planted::kNothing;
}

Plan MakePlan(uint64_t seed, Planted planted) {
  Random random(seed);
  Plan plan;
  plan.seed = seed;
  plan.dram_bytes = random.Between(3, 20) * kExtentAlignBytes;
  DrawDisk(&plan, &random);
  const uint64_t tenants = random.Between(1, 5);
  for (uint64_t i = 0; i < tenants; ++i) {
    TenantPlan tenant;
    tenant.groups = static_cast<uint32_t>(random.Between(1, 3));
    tenant.hoards = random.Chance(20);
    tenant.abandons = random.Chance(15);
    tenant.scribbles = random.Chance(10);
    plan.tenants.push_back(tenant);
  }
  const uint64_t layouts = random.Between(1, 3);
  for (uint64_t i = 0; i < layouts; ++i) {
    plan.layouts.push_back({16, random.Pick(kShardCounts), random.Pick(kShardBytes)});
  }
  for (size_t kind = 0; kind < kEventKinds; ++kind) {
    const bool optional =
        kind >= static_cast<size_t>(EventKind::kPin) && kind != static_cast<size_t>(EventKind::kAdvance);
    plan.weights[kind] = optional && random.Chance(15) ? 0 : kUsualWeights[kind] * 3 / random.Pick(kTurns);
  }
  plan.populate_failures_percent = random.Chance(30) ? 5 : 0;
  plan.memory_queue_max = random.Pick(kQueues);
  plan.memory_speed = random.Pick(kSpeeds);
  plan.disk_speed = random.Pick(kSpeeds);
  plan.catalog_speed = random.Pick(kSpeeds);
  plan.chain_length_max = random.Chance(20) ? 700 : static_cast<uint32_t>(random.Between(2, 48));
  plan.eviction = random.Chance(50) ? "lhd" : "lru";
  plan.removed_grace_ms = random.Pick(kGracesMs);
  MakeRoomFor(planted, &plan, &random);
  AddMoreFaults(&plan);
  AddLargeBlocks(&plan);
  AddEncryption(&plan);
  AddWriteBudget(&plan);
  SplitDisk(&plan);
  return plan;
}

policy::TenantRules DrawRules(const Plan& plan, const std::string& name, uint32_t uid, Random* random) {
  policy::TenantRules rules;
  rules.name = name;
  rules.uid = absl::StrCat(name, "#", uid);
  rules.sla = static_cast<policy::SlaTier>(random->Below(3));
  rules.weight = static_cast<uint32_t>(random->Between(1, 400));
  const std::array<std::pair<TierKind, uint64_t>, 2> capacities = {
      {{TierKind::kDram, plan.dram_bytes}, {TierKind::kNvme, plan.nvme_bytes}}};
  for (const auto& [kind, capacity] : capacities) {
    policy::TierQuota& quota = rules.tier(kind);
    if (capacity == 0 || random->Chance(kind == TierKind::kDram ? 4 : 25)) continue;
    const uint64_t share = capacity / plan.tenants.size();
    quota.limit_bytes = random->Chance(30) ? capacity : random->Between(1, capacity / kMiB) * kMiB;
    quota.guarantee_bytes = std::min(quota.limit_bytes, random->Between(0, share / kMiB) * kMiB);
    rules.ttl_ms[TierIndex(kind)] = random->Chance(50) ? 0 : random->Between(5, 100) * kTickMs;
  }
  rules.on_expiry = random->Chance(50) ? policy::OnExpiry::kDemote : policy::OnExpiry::kDelete;
  if (random->Chance(25)) rules.max_age_ms = random->Between(10, 200) * kTickMs;
  if (random->Chance(15)) rules.max_entries = random->Between(8, 400);
  if (plan.encrypts) rules.encrypt_nvme = random->Chance(50);
  return rules;
}

std::string Describe(const Plan& plan) {
  std::string out = absl::StrCat("seed ", plan.seed, ": dram ", plan.dram_bytes / kMiB, " MiB, nvme ",
                                 plan.nvme_bytes / kMiB, " MiB on ", plan.disks, " disks, ", plan.tenants.size(),
                                 " tenants, ", plan.eviction, ", grace ", plan.removed_grace_ms, " ms, layouts");
  for (const ModelLayout& layout : plan.layouts)
    absl::StrAppend(&out, " ", layout.shard_count, "x", layout.shard_bytes);
  absl::StrAppend(&out, ", speeds ", plan.memory_speed, "/", plan.disk_speed, "/", plan.catalog_speed,
                  !plan.disk_lies()                      ? ""
                  : plan.faulty_disks == tier::kAllDisks ? ", the disk fails"
                                                         : ", one disk fails",
                  plan.power_cuts ? ", power cuts" : "", plan.loses_catalog ? ", the catalog is lost" : "",
                  plan.keys_go    ? ", encrypted, and keys go"
                  : plan.encrypts ? ", encrypted"
                                  : "",
                  plan.write_budget > 0 ? absl::StrCat(", ", plan.write_budget, " bytes a second may be written") : "",
                  ", planted: ", PlantedName(plan.planted));
  return out;
}

}  // namespace kvartal::sim
