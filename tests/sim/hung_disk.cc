// One disk hangs with blocks of a tenant in its hands, and another is sound: who stores and loads is answered long
// before his deadline. A block that the hung disk has cannot go, and one is left that can.
#include <algorithm>
#include <utility>

#include "tests/sim/say.h"

namespace kvartal::sim {
namespace {

constexpr uint64_t kHangDramBytes = 2 * kExtentAlignBytes;
constexpr uint32_t kHangChain = 16;
constexpr uint32_t kHangRounds = (kNumbers - kScanStart) / kHangChain;
constexpr uint32_t kRoundsOnHung = 4;
constexpr int kRestTicks = 150;  // of a limit that is lowered
// The time after which it is overdue, and the slots of who was cut off have rested.
constexpr int kHangTicks = 2 * kIoDeadlineMs / kTickMs;
// Of who asks then. Longer than anything that is waited for in vain: a segment that nothing leaves, a fill.
constexpr uint32_t kHangDeadlineMs = 40'000;

// No block goes for its age.
policy::TenantRules RulesOf(const policy::TenantRules& rules, uint64_t dram_bytes, uint64_t nvme_bytes) {
  policy::TenantRules out = rules;
  out.ttl_ms = {};
  out.max_age_ms = 0;
  out.max_entries = policy::kNoLimit;
  out.tier(TierKind::kDram).limit_bytes = dram_bytes;
  out.tier(TierKind::kNvme).limit_bytes = nvme_bytes;
  for (const TierKind tier : kAllTiers) {
    policy::TierQuota& quota = out.tier(tier);
    quota.guarantee_bytes = std::min(quota.guarantee_bytes, quota.limit_bytes);
  }
  return out;
}

Chain ChainOf(uint32_t round) { return {kScanStart + round % kHangRounds * kHangChain, kHangChain}; }

}  // namespace

void Simulation::HangOneDisk() {
  const uint32_t index = random_.Pick(current_);
  const Life& life = model_.life(index);
  const auto space = static_cast<uint32_t>(random_.Below(plan_.layouts.size()));
  if (!life.in_policy || life.dropping || life.scribbles || !node_.recovered() || catalog_failed_) return;
  if (!Open(index, space)) return;
  // It has nothing; or what it has in memory has no copy on NVMe, and is written there when its space is wanted.
  const bool demotes = random_.Chance(50);
  ChangeRules(index, RulesOf(life.rules, demotes ? kHangDramBytes : 0, 0));
  if (!Rest(index)) return;
  for (uint32_t round = 0; round < kHangRounds && demotes && !findings_.any(); ++round) {
    Store(index, space, ChainOf(round));
    Tick();
  }
  ChangeRules(index, RulesOf(life.rules, kHangDramBytes, plan_.nvme_bytes));
  if (Disk* const hung = HangUnder(index, space); hung != nullptr) GoOnBeside(index, space, *hung);
  EndTrouble();
  EndSessions(index);
  node_.CompleteAll();
}

// It is within its limits.
bool Simulation::Rest(uint32_t index) {
  const auto within = [&] {
    const engine::EngineStats all = node_.engine().stats();
    const engine::TenantStats& stats = *StatsOf(all, model_.life(index).id);
    return std::all_of(std::begin(kAllTiers), std::end(kAllTiers), [&](TierKind tier) {
      const engine::TenantTierStats& of_tier = stats.tiers[TierIndex(tier)];
      return of_tier.charged_bytes <= of_tier.limit_bytes;
    });
  };
  for (int ticks = 0; ticks < kRestTicks && !within() && !findings_.any(); ++ticks) {
    node_.CompleteAll();
    Tick();
  }
  return within() && !findings_.any();
}

// A disk that takes blocks of the tenant, and does not let go of them. Null: none does, or no other is sound.
Disk* Simulation::HangUnder(uint32_t index, uint32_t space) {
  uint32_t round = 0;
  for (const auto& disk : node_.disks()) {
    if (!disk->is_open() || !node_.AnotherIsSound(disk.get())) continue;
    in_trouble_ = true;
    disk->Hold();
    for (uint32_t i = 0; i < kRoundsOnHung && disk->pending() == 0 && !findings_.any(); ++i)
      Store(index, space, ChainOf(round++));
    if (disk->pending() > 0) {
      Say("  disk ", disk->place(), " hangs with ", disk->pending(), " transfers");
      return findings_.any() ? nullptr : disk.get();
    }
    EndTrouble();
  }
  return nullptr;
}

void Simulation::GoOnBeside(uint32_t index, uint32_t space, const Disk& hung) {
  const auto let_time_pass = [&] {
    for (int ticks = 0; ticks < kHangTicks && !findings_.any(); ++ticks) {
      node_.CompleteAll();
      Tick();
    }
  };
  let_time_pass();
  // Who waits for that disk from before.
  for (size_t at = 0; at < model_.life(index).groups.size(); ++at) EndGroup(index, at);
  let_time_pass();
  if (findings_.any() || !model_.life(index).in_policy || !hung.overdue() || !node_.AnotherIsSound(&hung)) return;
  coverage_.Note(Situation::kHungWhileDemoting);
  const uint64_t stores = kHangDramBytes / plan_.layouts[space].SlotBytes() + kHangChain;
  for (uint32_t i = 0; i < stores && !findings_.any(); ++i) {
    if (!StoreBeside(index, space, kNumbers - 1 - i, hung)) return;
  }
  LoadBeside(index, space);
}

// One block, and its memory is full by and by. False: no more of this.
bool Simulation::StoreBeside(uint32_t index, uint32_t space, uint32_t number, const Disk& hung) {
  Reserve(index, space, {number, 1}, model_.life(index).groups.front(), 0, kNoParent, kHangDeadlineMs);
  if (!reserves_.empty()) {
    const uint64_t in_memory =
        FindIn(index, space, TierKind::kDram).size() * uint64_t{plan_.layouts[space].SlotBytes()};
    if (in_memory <= node_.QueuedBytes(hung)) return false;
    if (!IsAnswered([this] { return reserves_.empty(); })) {
      Wrong(absl::StrCat(model_.life(index).rules.uid, " waits to store a block for as long as a disk hangs, has ",
                         in_memory, " bytes in memory, and ", node_.QueuedBytes(hung), " are that disk's"));
    }
  }
  if (findings_.any() || unfinished_.empty()) return !findings_.any();
  coverage_.Note(Situation::kStoredBesideHung);
  for (const Unfinished& item : std::exchange(unfinished_, {})) FinishOne(item);
  node_.CompleteAll();
  return true;
}

void Simulation::LoadBeside(uint32_t index, uint32_t space) {
  const std::vector<uint32_t> below = FindIn(index, space, TierKind::kNvme);
  if (findings_.any() || below.empty()) return;
  Lookup(index, space, {random_.Pick(below), 1});
  if (leases_.empty() || leases_.back().life != index) return;
  Load(leases_.back(), 1);
  if (!IsAnswered([this] { return loads_ == 0; }))
    return Wrong(
        absl::StrCat(model_.life(index).rules.uid, " waits to load a block for as long as another disk hangs"));
  coverage_.Note(Situation::kLoadedBesideHung);
}

bool Simulation::IsAnswered(absl::FunctionRef<bool()> answered) {
  for (uint32_t ticks = 2; ticks < kHangDeadlineMs / kTickMs && !answered() && !findings_.any(); ++ticks) {
    node_.CompleteAll();
    Tick();
  }
  return answered() || findings_.any();
}

// Numbers of the blocks stored above that are found there.
std::vector<uint32_t> Simulation::FindIn(uint32_t index, uint32_t space, TierKind tier) {
  std::vector<uint32_t> found;
  for (uint32_t number = kScanStart; number < kNumbers; ++number) {
    const BlockRef ref{index, space, number};
    const std::vector<BlockKey> keys = {KeyOf(number)};
    std::vector<engine::BlockPlace> places;
    node_.engine().Lookup(model_.life(index).ns[space], keys, 0, 0, &places);
    if (places.empty()) continue;
    const engine::Hold hold = engine::HoldOf(places[0]);
    node_.engine().Release({&hold, 1});
    model_.Found(ref, hold.in_place, Now());
    model_.at(ref).used_ms = model_.at(ref).access_ms = Now();
    if (places[0].tier == tier) found.push_back(number);
  }
  return found;
}

}  // namespace kvartal::sim
