// What happens to the node: time, policy, tenants that come and go, devices in trouble, rest.
#include <algorithm>
#include <utility>

#include "tests/sim/say.h"

namespace kvartal::sim {
namespace {

constexpr uint32_t kTenantsPerBootMax = 12;  // an engine keeps what it knew of each until it restarts
constexpr int kSettleRoundsMax = 400;
constexpr int64_t kRemovalMs = 3'000;  // at rest: from the end of a grace to the last zero

}  // namespace

// --- time

void Simulation::DoAdvance() {
  const uint64_t ticks = random_.Chance(85) ? random_.Between(1, 3) : random_.Between(4, 60);
  Say("time goes on: ", ticks, " ticks");
  for (uint64_t i = 0; i < ticks && !findings_.any(); ++i) Tick();
  if (random_.Chance(20)) {
    node_.AdvanceMs(static_cast<int64_t>(random_.Below(kTickMs)));
    tick_late_ = true;
  }
}

void Simulation::Tick() {
  node_.AdvanceMs(kTickMs);
  node_.engine().Tick();
  if (node_.engine().behind()) node_.engine().CatchUp();
  CheckLedger();
  RenewLeases();
  tick_late_ = false;
  node_.CompleteSome(&random_);
}

// --- policy

void Simulation::DoPolicy() {
  uint32_t index;
  if (!AnyLife(&index)) return;
  Life& life = model_.life(index);
  const policy::TenantRules before = life.rules;
  policy::TenantRules rules = DrawRules(plan_, life.name, life.uid, &random_);
  if (random_.Chance(50)) {
    const auto quota = rules.quota;
    rules = before;
    rules.quota = quota;
  }
  ChangeRules(index, rules);
}

void Simulation::ChangeRules(uint32_t index, const policy::TenantRules& rules) {
  Life& life = model_.life(index);
  const policy::TenantRules before = life.rules;
  for (const TierKind tier : kAllTiers) {
    life.quota_lowered |= rules.tier(tier).limit_bytes < before.tier(tier).limit_bytes ||
                          rules.tier(tier).guarantee_bytes < before.tier(tier).guarantee_bytes;
  }
  life.quota_lowered |= rules.max_entries < before.max_entries;
  CheckLedger();  // what is charged up to here is held against the old limits
  model_.SetRules(index, rules);
  life.ruled_ms = Now();
  Say("policy of ", rules.uid, ": dram ", rules.tier(TierKind::kDram).limit_bytes / 1024, " KiB, nvme ",
      rules.tier(TierKind::kNvme).limit_bytes / 1024, " KiB, ttl ", rules.ttl_ms[TierIndex(TierKind::kDram)], "/",
      rules.ttl_ms[TierIndex(TierKind::kNvme)], " ms, max age ", rules.max_age_ms, " ms");
  node_.ApplyPolicy(RulesInForce());
  for (const TierKind tier : kAllTiers) {
    const bool below = life.charged_bytes[TierIndex(tier)] > rules.tier(tier).limit_bytes;
    if (below) coverage_.Note(Situation::kLimitBelowUse);
  }
}

// A policy goes, comes back, or is made anew under its name.
void Simulation::DoTenantLife() {
  uint32_t& current = random_.Pick(current_);
  Life& life = model_.life(current);
  if (life.dropping) return;
  if (life.in_policy) {
    Say(life.rules.uid, " is removed");
    coverage_.Note(Situation::kTenantRemoved);
    EndSessions(current);
    CheckLedger();
    life.in_policy = false;
    life.removed_bytes = life.charged_bytes;
    life.quota_lowered = life.was_removed = true;
    life.removed_ms = Now();
    return node_.ApplyPolicy(RulesInForce());
  }
  const bool anew = tenants_of_boot_ < kTenantsPerBootMax && random_.Chance(60);
  if (anew) {
    const uint32_t uid = life.uid + 1;
    const uint32_t tenant = life.tenant;
    const policy::TenantRules rules = DrawRules(plan_, life.name, uid, &random_);
    model_.Retire(current);
    current = model_.AddLife(tenant, uid, rules);
    for (uint32_t i = 0; i < plan_.tenants[tenant].groups; ++i) model_.life(current).groups.emplace_back(++last_group_);
  } else {
    life.in_policy = true;
    // Of what came back from the disk meanwhile nobody knew how much it may be.
    life.quota_lowered = life.was_removed = true;
  }
  Say(model_.life(current).rules.uid, anew ? " is new" : " is back");
  coverage_.Note(anew ? Situation::kTenantAnew : Situation::kTenantBack);
  node_.ApplyPolicy(RulesInForce());
  const TenantId id = node_.engine().FindTenant(model_.life(current).name);
  if (id != model_.life(current).id) ++tenants_of_boot_;
  if (!anew && model_.life(current).id.valid() && id != model_.life(current).id) Wrong("a tenant came back as another");
  Life& back = model_.life(current);
  back.id = id;
  back.ruled_ms = Now();
  const engine::EngineStats stats = node_.engine().stats();
  for (const TierKind tier : kAllTiers) {
    back.charged_bytes[TierIndex(tier)] = StatsOf(stats, id)->tiers[TierIndex(tier)].charged_bytes;
  }
}

void Simulation::EndSessions(uint32_t index) {
  for (size_t at = 0; at < model_.life(index).groups.size(); ++at) EndGroup(index, at);
  for (size_t at = 0; at < leases_.size();) {
    if (leases_[at].life == index) {
      ReleaseLease(at, leases_[at].blocks.size());
      at = 0;  // it may have answered others
    } else {
      ++at;
    }
  }
  // The groups owed it: they open it again when they come back.
  Life& life = model_.life(index);
  for (size_t space = 0; space < life.ns.size(); ++space) {
    for (; life.namespace_users[space] > 0; --life.namespace_users[space])
      node_.engine().CloseNamespace(life.ns[space]);
  }
}

void Simulation::DoDrop() {
  uint32_t index;
  if (!AnyLife(&index) || model_.life(index).dropping) return;
  EndSessions(index);
  Say("drop ", model_.life(index).rules.uid);
  model_.StartDrop(index);
  node_.engine().DropTenant(model_.life(index).id,
                            [this, index, below = model_.next_nonce()](const absl::StatusOr<uint64_t>& bytes) {
                              OnDropped(index, below, bytes);
                            });
  const bool sound = plan_.planted == Planted::kNothing && !plan_.disk_lies();
  if (plan_.nvme_bytes > 0 && sound && random_.Chance(60)) CrashBehindDrop(index);
}

// The disk kept a drop, or a removal, from its end: the tenant has another number now, and nothing.
void Simulation::OnBegunAnew(const std::string& tenant) {
  for (const uint32_t index : current_) {
    const Life& life = model_.life(index);
    if (life.name != tenant || !life.in_policy) continue;
    Say("  ", life.rules.uid, " begins anew");
    EndSessions(index);
    ++tenants_of_boot_;
    model_.MoveOn(index, node_.engine().FindTenant(tenant));
    coverage_.Note(Situation::kDropStuck);
  }
}

void Simulation::OnDropped(uint32_t index, uint32_t nonces_below, const absl::StatusOr<uint64_t>& bytes) {
  Say("  ", model_.life(index).rules.uid, bytes.ok() ? " is erased" : " could not be erased");
  // It came back while it was being erased already.
  const bool twice = absl::IsAlreadyExists(bytes.status()) && model_.life(index).was_removed;
  const bool apart = absl::IsUnavailable(bytes.status());
  // Nobody knows what lies on a disk that is absent. It is condemned all the same, for when the disk is back.
  const bool unseen = absl::IsDataLoss(bytes.status()) && node_.absent_disks() > 0;
  if (!bytes.ok() && !twice && !apart && !unseen && !plan_.disk_lies() && !catalog_failed_)
    Wrong("a drop failed though nothing is wrong");
  if (bytes.ok() && node_.absent_disks() > 0) Wrong("a drop is certified, and a disk is absent");
  if (bytes.ok() && (last_receipt_.tenant != model_.life(index).name || last_receipt_.bytes() != *bytes ||
                     last_receipt_.unerased_blocks > 0))
    Wrong("the receipt of a drop tells something else");
  model_.EndDrop(index, nonces_below, bytes.ok() || unseen);
  if (bytes.ok() || unseen) NoteInformed();
  coverage_.Note(Situation::kDropped);
  if (unseen) coverage_.Note(Situation::kDroppedWhileAway);
  // What a deletion promised is seen best when nothing but the promise is left.
  crash_next_ = bytes.ok() && plan_.weights[static_cast<size_t>(EventKind::kCrash)] > 0 && random_.Chance(30);
}

// Every disk that is there has its tombstone, and those before it.
void Simulation::NoteInformed() { informed_ = catalog_failed_ ? informed_ & node_.present() : node_.present(); }

// --- devices

// Keys go and come; the one with the highest number encrypts.
void Simulation::TurnKeys() {
  std::set<uint32_t> keys;
  for (uint32_t id = 1; id <= 3; ++id) {
    if (random_.Chance(60)) keys.insert(id);
  }
  Say("the node has ", keys.size(), " keys");
  if (!std::includes(keys.begin(), keys.end(), keys_.begin(), keys_.end())) model_.NoteKeysGone();
  keys_ = keys;
  node_.SetKeys(keys_);
}

void Simulation::DoTrouble() {
  if (plan_.keys_go && random_.Chance(20)) return TurnKeys();
  switch (random_.Below(7)) {
    case 0:
      Say("memory is held");
      in_trouble_ = true;
      return node_.memory().Hold();
    case 1:
      if (plan_.populate_failures_percent == 0) return;
      Say("memory is refused");
      return node_.memory().FailNextPopulates(static_cast<int>(random_.Between(1, 3)));
    case 2:
      return TroubleDisk(node_.AnyDisk(&random_));
    case 3:
      return TroubleCatalog(node_.AnyDisk(&random_));
    case 4:
      if (node_.disks().empty()) return;
      Say("the catalog is synced");
      model_.Synced();
      return node_.SyncCatalog();
    case 5: {
      const int64_t skew_ms = static_cast<int64_t>(random_.Between(0, 2 * kSkewMsMax)) - kSkewMsMax;
      Say("the wall clock is set, ", skew_ms, " ms off");
      return node_.SkewWall(skew_ms);
    }
    default:
      Say("the trouble is over");
      return EndTrouble();
  }
}

void Simulation::TroubleDisk(Disk* disk) {
  if (disk == nullptr) return;
  in_trouble_ = true;
  const bool hangs = random_.Chance(50);
  Say("disk ", disk->place(), hangs ? " hangs" : " is held");
  if (!hangs) return disk->Hold();
  if (plan_.disks == 1) return disk->Hang();
  // It is found out while the engine is at work; some of them let go of nothing.
  disk->Hang(static_cast<uint32_t>(random_.Below(kQuestionsMax)));
  if (random_.Chance(50)) disk->Hold();
}

void Simulation::TroubleCatalog(Disk* disk) {
  if (disk == nullptr) return;
  in_trouble_ = true;
  const bool held = random_.Chance(50);
  Say("the catalog of disk ", disk->place(), held ? " is held" : " is full");
  if (held) return disk->HoldCatalog();
  coverage_.Note(Situation::kCatalogFull);
  catalog_failed_ = true;
  disk->FailCatalogWrites();
}

void Simulation::EndTrouble() {
  in_trouble_ = false;
  node_.memory().Release();
  node_.EndTrouble();
}

// --- rest

// Everybody leaves, trouble ends: everything that is under way comes to its end, and nothing is left behind.
void Simulation::DoSettle() {
  Say("everything comes to rest");
  EndTrouble();
  if (!plan_.disk_lies() && random_.Chance(50))
    DrainUnderHolds(plan_.nvme_bytes > 0 && random_.Chance(60) ? TierKind::kNvme : TierKind::kDram);
  while (!leases_.empty() && !findings_.any()) ReleaseLease(0, leases_[0].blocks.size());
  for (const uint32_t index : current_) {
    for (size_t at = 0; at < model_.life(index).groups.size(); ++at) EndGroup(index, at);
  }
  // What is over age goes in parts.
  uint64_t entries = Entries();
  for (int round = 0, stuck = 0; stuck < kSettleRoundsMax && !findings_.any(); ++round, ++stuck) {
    if (const uint64_t before = std::exchange(entries, Entries()); entries < before) stuck = 0;
    node_.CompleteAll();
    node_.FailLost();
    while (!leases_.empty()) ReleaseLease(0, leases_[0].blocks.size());
    Tick();
    if (round % 16 == 15 && UnderWay().empty()) break;
  }
  if (findings_.any()) return;
  if (const std::string left = UnderWay(); !left.empty()) return Wrong("what is under way never ends:" + left);
  CheckMemoryAtRest();
  if (plan_.large_blocks && random_.Chance(50)) ClaimNvmeGuarantee();
  if (plan_.disks > 1 && random_.Chance(50)) HangOneDisk();
}

uint64_t Simulation::Entries() {
  uint64_t entries = 0;
  for (const engine::TenantStats& tenant : node_.engine().stats().tenants) entries += tenant.entries;
  return entries;
}

std::string Simulation::UnderWay() {
  const engine::EngineStats stats = node_.engine().stats();
  uint64_t drops = 0;
  for (const uint32_t index : current_) drops += model_.life(index).dropping ? 1 : 0;
  const std::pair<const char*, uint64_t> counts[] = {
      {"drops", drops},
      {"reserves", reserves_.size()},
      {"loads", loads_},
      {"waiters", stats.waiting_requests},
      {"reads", stats.loads_under_way},
      {"writes", stats.writes_under_way},
      {"leases", stats.leased_blocks},
      {"memory", node_.memory().counts().pending},
      // A guarantee is served once nothing is in its way, wherever the free bytes lie, if they are there.
      {"guarantees on nvme",
       !plan_.disk_lies() && node_.absent_disks() == 0 && stats.guarantee_waits[TierIndex(TierKind::kNvme)] ? 1 : 0},
      {"bytes being reclaimed", stats.reclaiming_bytes[TierIndex(TierKind::kDram)]},
  };
  std::string out;
  for (const auto& [what, count] : counts) {
    if (count > 0) absl::StrAppend(&out, " ", count, " ", what);
  }
  return out;
}

// A tenant that did not come back has nothing left after its grace.
void Simulation::CheckRemoved(const engine::EngineStats& stats) {
  if (plan_.disk_lies() || catalog_failed_) return;
  for (uint32_t index = 0; index < model_.life_count(); ++index) {
    const Life& life = model_.life(index);
    if (!life.id.valid() || life.in_policy || Now() - life.removed_ms < plan_.removed_grace_ms + kRemovalMs) continue;
    const engine::TenantStats& left = *StatsOf(stats, life.id);
    if (left.entries > 0 || left.tiers[TierIndex(TierKind::kDram)].charged_bytes > 0)
      Wrong(absl::StrCat(life.rules.uid, " was removed long ago, and has ", left.entries, " blocks"));
  }
}

// What the system really holds for a domain is what the domain is charged for.
void Simulation::CheckMemoryAtRest() {
  const engine::EngineStats stats = node_.engine().stats();
  ForgetGone(stats);
  CheckRemoved(stats);
  for (const uint32_t index : current_) {
    const Life& life = model_.life(index);
    if (!life.id.valid() || life.ns.empty() || life.scribbles) continue;
    const uint64_t held = node_.dram().arena(node_.engine().DomainOf(life.id))->AllocatedBytes();
    const uint64_t charged = StatsOf(stats, life.id)->tiers[TierIndex(TierKind::kDram)].charged_bytes;
    if (held != charged)
      Wrong(absl::StrCat(life.rules.uid, ": the system holds ", held, " bytes of memory, ", charged, " are charged"));
  }
}

}  // namespace kvartal::sim
