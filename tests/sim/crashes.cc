// Crashes, what they find, and what must be there after them.
#include <algorithm>
#include <bit>
#include <utility>

#include "tests/sim/say.h"

namespace kvartal::sim {
namespace {

constexpr int kRecoveryRoundsMax = 400;
// What a full queue refuses is tried again: that often, until every pin is on disk.
constexpr uint32_t kRestRounds = 6 * kTimerBusyTicks;
constexpr int kDropTicks = 30;
constexpr uint32_t kLeasesPinned = 3;
constexpr size_t kSurvivorsChecked = 48;
constexpr int64_t kDownMsMax = 60'000;  // from a crash to the next start

}  // namespace

void Simulation::DoCrash() {
  auto kind = Node::CrashKind::kKill;
  if (plan_.nvme_bytes > 0 && plan_.power_cuts && random_.Chance(40)) kind = Node::CrashKind::kPowerCut;
  if (plan_.nvme_bytes > 0 && plan_.loses_catalog && random_.Chance(40)) kind = Node::CrashKind::kLosesCatalog;
  Say("crash", kind == Node::CrashKind::kKill       ? ""
               : kind == Node::CrashKind::kPowerCut ? ", power cut"
                                                    : ", no catalog");
  const bool rests_first = random_.Chance(60) && kind == Node::CrashKind::kKill;
  if (rests_first) {
    PinBeforeCrash();
    ComeToRest();
  }
  if (findings_.any()) return;
  NoteCrash(kind);
  crash_next_ = false;
  crash_at_ = UINT64_MAX;
  std::vector<Model::DurablePin> pins;
  if (rests_first && !catalog_failed_) pins = model_.DurablePins(Now());
  const int64_t crash_ms = Now();
  CrashNode(kind);
  // A disk that was replaced has taken its own with it.
  std::erase_if(pins, [this](const Model::DurablePin& pin) { return !model_.durable().contains(pin.slot); });
  // Of several copies the one that is found may be of before the pin.
  const bool copies = plan_.disks > 1 && past_back_;
  Boot();
  if (Now() < crash_ms) coverage_.Note(Situation::kClockSetBack);
  if (Now() > crash_ms + kDownMsMax) coverage_.Note(Situation::kClockSetForward);
  std::vector<BlockRef> kept;
  for (const Model::DurablePin& pin : pins) {
    if (node_.IsPresent(pin.slot) && model_.MustBeKept(pin, Now(), latest_date_ms_)) kept.push_back(pin.block);
  }
  if (node_.recovered() && !findings_.any() && !copies) CheckPins(kept);
}

// What is stored after a drop outlives the next crash, though the wall clock was set back to before the drop, and
// nothing was recorded between.
void Simulation::CrashBehindDrop(uint32_t index) {
  EndTrouble();
  for (int tick = 0; tick < kDropTicks && model_.life(index).dropping && !findings_.any(); ++tick) {
    node_.CompleteAll();
    if (model_.life(index).dropping) Tick();
  }
  node_.CompleteAll();
  if (findings_.any() || model_.life(index).dropping || !model_.life(index).in_policy) return;
  policy::TenantRules rules = model_.life(index).rules;
  for (const TierKind tier : {TierKind::kDram, TierKind::kNvme}) {
    rules.tier(tier).limit_bytes = node_.engine().stats().capacity_bytes[TierIndex(tier)];
  }
  rules.ttl_ms = {};
  rules.max_age_ms = 0;
  ChangeRules(index, rules);
  node_.SkewWall(-kSkewMsMax);
  NoteCrash(Node::CrashKind::kKill);
  crash_next_ = false;
  crash_at_ = UINT64_MAX;
  CrashNode(Node::CrashKind::kKill);
  Boot();
  if (!findings_.any()) PinBeforeCrash();
  if (!findings_.any()) ComeToRest();
  if (!findings_.any()) DoCrash();
}

void Simulation::CrashNode(Node::CrashKind kind) {
  lost_.clear();
  leases_.clear();
  unfinished_.clear();
  finished_.clear();
  reserves_.clear();
  loads_ = 0;
  // What it was told of when it started is before all that is loaded.
  if (node_.recovered() && !catalog_failed_) informed_ |= node_.present();
  latest_date_ms_ = std::max(latest_date_ms_, Now());
  const tier::DiskSet lost = node_.Crash(kind, &random_);
  const Node::DisksChanged changed = node_.ChangeDisks(&random_);
  // The last date may be lost with a disk or its catalog: nothing would tell that the clock was set back.
  if (kind == Node::CrashKind::kLosesCatalog || node_.absent_disks() > 0 || changed.replaced != tier::kNoDisk)
    node_.SkewWall(kSkewMsMax);
  // A recovery that was cut short may have taken the copy of a disk that was back, and that is gone again.
  if (past_back_ && changed.left != tier::kNoDisk) model_.ForgetPromises();
  past_back_ = past_back_ || lost != tier::kNoDisk || changed.back != tier::kNoDisk;
  node_.AdvanceMs(static_cast<int64_t>(random_.Below(random_.Chance(80) ? 2'000 : kDownMsMax)));
  informed_ &= ~(lost | changed.replaced);
  const bool forgets_deletions = plan_.nvme_bytes > 0 && (informed_ & node_.present()) == tier::kNoDisk;
  if (forgets_deletions) informed_ = tier::kAllDisks;
  model_.Crash(kind == Node::CrashKind::kPowerCut, lost != tier::kNoDisk, forgets_deletions);
  NoteDisks(changed);
}

void Simulation::NoteDisks(const Node::DisksChanged& changed) {
  const std::pair<tier::DiskSet, Situation> changes[] = {{changed.left, Situation::kDiskAbsent},
                                                         {changed.back, Situation::kDiskBack},
                                                         {changed.replaced, Situation::kDiskReplaced}};
  for (const auto& [disks, situation] : changes) coverage_.Note(situation, static_cast<uint64_t>(std::popcount(disks)));
  if (changed.replaced != tier::kNoDisk) {
    model_.ForgetPromises(
        [&](SlotId slot) { return (changed.replaced & tier::SetOfDisk(node_.DiskOf(slot))) != tier::kNoDisk; });
  }
  if ((changed.left | changed.back | changed.replaced) == tier::kNoDisk) return;
  const auto list = [](tier::DiskSet disks) {
    std::string out;
    for (size_t disk = 0; disk < kDisksMax; ++disk) {
      if ((disks & tier::SetOfDisk(disk)) != tier::kNoDisk) absl::StrAppend(&out, " ", disk);
    }
    return out.empty() ? " none" : out;
  };
  Say("  of ", plan_.disks, " disks gone:", list(changed.left), ", back:", list(changed.back),
      ", replaced:", list(changed.replaced), "; there are:", list(node_.present()));
}

// What each tenant stores last, and may pin for longer than the node is down.
void Simulation::PinBeforeCrash() {
  EndTrouble();
  for (const uint32_t index : current_) {
    const Life& life = model_.life(index);
    const auto space = static_cast<uint32_t>(random_.Below(plan_.layouts.size()));
    if (!life.in_policy || life.dropping || !Open(index, space)) continue;
    const Chain chain{static_cast<uint32_t>(random_.Below(kChains)) * kChainLength, 4};
    Store(index, space, chain);
    Lookup(index, space, chain);
  }
  uint32_t pinned = 0;
  for (auto lease = leases_.rbegin(); lease != leases_.rend() && pinned < kLeasesPinned; ++lease, ++pinned) {
    const Life& life = model_.life(lease->life);
    if (!life.in_policy || life.dropping) continue;
    Pin(*lease, std::min<size_t>(lease->blocks.size(), 4),
        static_cast<int64_t>(random_.Between(10'000, 3 * kDownMsMax)));
  }
}

void Simulation::NoteCrash(Node::CrashKind kind) {
  const engine::EngineStats stats = node_.engine().stats();
  const auto note = [this](bool is, Situation situation) {
    if (is) coverage_.Note(situation);
  };
  bool erasing = false;
  for (const uint32_t index : current_) erasing |= model_.life(index).dropping;
  coverage_.Note(Situation::kCrash);
  note(kind == Node::CrashKind::kPowerCut, Situation::kPowerCut);
  note(kind == Node::CrashKind::kLosesCatalog, Situation::kCatalogLost);
  note(stats.writes_under_way > 0, Situation::kCrashWhileWriting);
  note(erasing, Situation::kCrashWhileErasing);
  note(!node_.recovered(), Situation::kCrashWhileRecovering);
  note(!leases_.empty(), Situation::kCrashWhileLeased);
  note(plan_.nvme_bytes > 0 && model_.HasPins(Now()), Situation::kPinAtCrash);
  NoteBoot();
}

// What the engine counted since it started.
void Simulation::NoteBoot() {
  using policy::DropReason;
  const engine::EngineStats stats = node_.engine().stats();
  constexpr std::pair<DropReason, Situation> kDrops[] = {
      {DropReason::kOverLimit, Situation::kDrained},        {DropReason::kEntryCap, Situation::kEntryCap},
      {DropReason::kRetired, Situation::kRetiredEvicted},   {DropReason::kIdle, Situation::kIdleExpired},
      {DropReason::kMaxAge, Situation::kAgeExpired},        {DropReason::kTakenByOther, Situation::kTaken},
      {DropReason::kInTheClear, Situation::kClearCopyGoes}, {DropReason::kKeyMissing, Situation::kKeyGone}};
  for (const engine::TenantStats& tenant : stats.tenants) {
    coverage_.Note(Situation::kDemoted, tenant.demotions);
    for (const engine::TenantTierStats& tier : tenant.tiers) {
      for (const auto& [reason, situation] : kDrops) coverage_.Note(situation, tier.drop(reason).count);
      coverage_.Note(Situation::kQueueFull, tier.refusal(policy::Refusal::kQueueFull).count);
      coverage_.Note(Situation::kWriteSpared, tier.refusal(policy::Refusal::kWriteBudget).count);
    }
  }
  coverage_.Note(Situation::kPopulateFailed, node_.memory().counts().failures);
  coverage_.Note(Situation::kHoleFilled, stats.stray_bytes_punched > 0 ? 1 : 0);
  coverage_.Note(Situation::kWriteFailed, stats.nvme_write_errors);
  coverage_.Note(Situation::kMismatch, stats.nvme_mismatches);
}

// What a crash finds on disk then is all that was to be written there.
void Simulation::ComeToRest() {
  EndTrouble();
  // A short queue of a catalog takes few records and pins a tick, and those of every block may wait for it.
  uint64_t rounds = kRestRounds;
  if (plan_.catalog_queue_max > 0) rounds += 2 * Entries() / plan_.catalog_queue_max;
  for (uint64_t round = 0; round < rounds && !findings_.any(); ++round) {
    node_.CompleteAll();
    node_.FailLost();
    Tick();
  }
  if (!findings_.any()) node_.CompleteAll();
}

// A pin outlives a restart, and the block with it, however short its TTL is.
void Simulation::CheckPins(const std::vector<BlockRef>& pins) {
  std::map<uint32_t, uint64_t> by_life;
  for (const BlockRef& ref : pins) {
    if (!Open(ref.life, ref.space)) continue;
    std::vector<engine::BlockPlace> places;
    const std::vector<BlockKey> keys = {KeyOf(ref.number)};
    node_.engine().Lookup(model_.life(ref.life).ns[ref.space], keys, 0, 0, &places);
    if (places.empty()) return Wrong(absl::StrCat(model_.NameOf(ref), " was pinned, and is gone after a crash"));
    const engine::Hold hold = engine::HoldOf(places[0]);
    node_.engine().Release({&hold, 1});
    model_.at(ref).used_ms = model_.at(ref).access_ms = Now();
    ++by_life[ref.life];
  }
  if (pins.empty()) return;
  Say("  ", pins.size(), " pins are kept");
  coverage_.Note(Situation::kPinKept, pins.size());
  const engine::EngineStats stats = node_.engine().stats();
  for (const auto& [index, count] : by_life) {
    const uint64_t pinned = StatsOf(stats, model_.life(index).id)->pinned_blocks;
    if (pinned < count)
      Wrong(absl::StrCat(model_.life(index).name, " has ", pinned, " pinned blocks after a crash, must have ", count));
  }
}

void Simulation::Boot() {
  model_.NewBoot();
  model_.SetRecovering(true, Now());
  catalog_failed_ = in_trouble_ = false;
  guarantee_waits_ = {};
  nvme_drops_ = {};
  recovery_noted_ = pinned_in_boot_ = false;
  const std::map<SlotId, uint32_t> durable = model_.durable();
  node_.Boot(RulesInForce());
  tenants_of_boot_ = 0;
  for (const uint32_t index : current_) {
    Life& life = model_.life(index);
    if (!life.in_policy) continue;
    ++tenants_of_boot_;
    life.id = node_.engine().FindTenant(life.name);
    if (!life.id.valid()) Wrong(life.name + " is in the policy, and nobody knows it");
  }
  // Else it goes on beside everything else, and blocks are stored anew meanwhile.
  if (random_.Chance(60) || model_.boots() == 1) {
    for (int round = 0; round < kRecoveryRoundsMax && !node_.recovered(); ++round) {
      node_.CompleteAll();
      node_.FailLost();
    }
    if (!node_.recovered()) Wrong("recovery never ended");
    if (!findings_.any()) CheckSurvivors(durable);
  }
  // The headers that were to tell of it are not all read.
  if (!node_.recovered() && past_back_ && random_.Chance(60)) crash_at_ = event_ + random_.Between(1, 100);
  for (const uint32_t index : current_) {
    Life& life = model_.life(index);
    life.quota_lowered = false;
    life.ruled_ms = Now();
    life.within_ms.fill(Now());
  }
  NoteRecovered();
}

// A limit that was lowered has no place for all; and headers say what was there once, too: that may have taken the
// place of what is there still.
bool Simulation::MayBeCrowdedOut(const Life& life) {
  const size_t nvme = TierIndex(TierKind::kNvme);
  const engine::EngineStats stats = node_.engine().stats();
  uint64_t block_bytes = 0, peak_bytes = 0;
  for (const ModelLayout& layout : plan_.layouts)
    block_bytes = std::max<uint64_t>(block_bytes, layout.SlotBytes() + kNvmeHeaderBytes);
  for (const engine::TenantStats& tenant : stats.tenants) peak_bytes += tenant.tiers[nvme].peak_bytes;
  const engine::TenantTierStats& own = StatsOf(stats, life.id)->tiers[nvme];
  return own.peak_bytes + block_bytes > own.limit_bytes || peak_bytes + block_bytes > stats.capacity_bytes[nvme];
}

// Once a boot. Headers say what was there once, too, as does a disk that was away: which of several copies of a block
// is found nobody can say before.
void Simulation::NoteRecovered() {
  if (!node_.recovered() || std::exchange(recovery_noted_, true)) return;
  if (std::exchange(past_back_, false)) model_.ForgetPromises();
}

void Simulation::CheckSurvivors(const std::map<SlotId, uint32_t>& durable) {
  std::vector<uint32_t> promised;
  for (const auto& [slot, nonce] : durable) {
    if (node_.IsPresent(slot) && model_.MustHaveSurvived(nonce, Now(), latest_date_ms_)) promised.push_back(nonce);
  }
  Say("recovered; ", promised.size(), " durable blocks must be there");
  for (size_t i = 0; i < kSurvivorsChecked && !promised.empty() && !findings_.any(); ++i) {
    const size_t at = random_.Below(promised.size());
    CheckSurvivor(promised[at]);
    promised.erase(promised.begin() + static_cast<ptrdiff_t>(at));
  }
}

void Simulation::CheckSurvivor(uint32_t nonce) {
  const BlockRef ref = model_.version(nonce).block;
  if (!Open(ref.life, ref.space)) return;
  const size_t leases = leases_.size();
  std::vector<engine::BlockPlace> places;
  const std::vector<BlockKey> keys = {KeyOf(ref.number)};
  node_.engine().Lookup(model_.life(ref.life).ns[ref.space], keys, 0, 0, &places);
  // An older copy, found first, may be over age.
  const bool may_be_hidden = past_back_ && model_.life(ref.life).shortest_age_ms > 0;
  // Nor is anything of a disk that failed so often by now that nobody asks it.
  if (places.empty() && node_.nvme_offline()) return;
  if (places.empty() && (may_be_hidden || MayBeCrowdedOut(model_.life(ref.life)))) return;
  if (places.empty()) return Wrong(absl::StrCat(model_.NameOf(ref), " was durable, and is gone after a crash"));
  coverage_.Note(Situation::kSurvived);
  Life::Block& block = model_.at(ref);
  model_.Found(ref, false, Now());
  block.used_ms = block.access_ms = Now();
  leases_.push_back({ref.life, ref.space, {TakeHold(ref, places[0], places[0].tier == TierKind::kDram, true)}, Now()});
  // Read it, too: what it says is checked when it comes.
  // Where a disk went there may be two salts of its tenant, of which one counts.
  const bool two_salts = plan_.encrypts && plan_.disks > 1;
  durable_read_ =
      !plan_.disk_lies() && !plan_.power_cuts && !past_back_ && !two_salts && !model_.life(ref.life).scribbles;
  if (random_.Chance(50)) Load(leases_.back(), 1);
  node_.CompleteAll();
  durable_read_ = false;
  if (leases_.size() > leases) ReleaseLease(leases, leases_[leases].blocks.size());
}

}  // namespace kvartal::sim
