// What happens to the node: time, policy, tenants that come and go, devices in trouble, crashes.
#include <algorithm>
#include <utility>

#include "tests/sim/say.h"

namespace kvartal::sim {
namespace {

constexpr uint32_t kTenantsPerBootMax = 12;  // an engine keeps what it knew of each until it restarts
constexpr int kSettleRoundsMax = 400;
// What a full queue refuses is tried again: that often, until every pin is on disk.
constexpr int kRestRounds = 6 * kTimerBusyTicks;
constexpr int64_t kRemovalMs = 3'000;  // at rest: from the end of a grace to the last zero
constexpr size_t kSurvivorsChecked = 48;

}  // namespace

// --- time

void Simulation::DoAdvance() {
  const uint64_t ticks = random_.Chance(85) ? random_.Between(1, 3) : random_.Between(4, 60);
  Say("time goes on: ", ticks, " ticks");
  for (uint64_t i = 0; i < ticks && !findings_.any(); ++i) Tick();
  if (random_.Chance(20)) node_.AdvanceMs(static_cast<int64_t>(random_.Below(kTickMs)));
}

void Simulation::Tick() {
  node_.AdvanceMs(kTickMs);
  node_.engine().Tick();
  if (node_.engine().behind()) node_.engine().CatchUp();
  CheckLedger();
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
  for (const TierKind tier : kAllTiers) {
    life.quota_lowered |= rules.tier(tier).limit_bytes < before.tier(tier).limit_bytes ||
                          rules.tier(tier).guarantee_bytes < before.tier(tier).guarantee_bytes;
  }
  life.quota_lowered |= rules.max_entries < before.max_entries;
  CheckLedger();  // what is charged up to here is held against the old limits
  model_.SetRules(index, rules);
  Say("policy of ", rules.uid, ": dram ", rules.tier(TierKind::kDram).limit_bytes / 1024, " KiB, nvme ",
      rules.tier(TierKind::kNvme).limit_bytes / 1024, " KiB, ttl ", rules.ttl_ms[TierIndex(TierKind::kDram)], "/",
      rules.ttl_ms[TierIndex(TierKind::kNvme)], " ms, max age ", rules.max_age_ms, " ms");
  node_.ApplyPolicy(RulesInForce());
}

// A policy goes, comes back, or is made anew under its name.
void Simulation::DoTenantLife() {
  uint32_t& current = random_.Pick(current_);
  Life& life = model_.life(current);
  if (life.dropping) return;
  if (life.in_policy) {
    Say(life.rules.uid, " is removed");
    EndSessions(current);
    CheckLedger();
    life.in_policy = false;
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
  node_.ApplyPolicy(RulesInForce());
  const TenantId id = node_.engine().FindTenant(model_.life(current).name);
  if (id != model_.life(current).id) ++tenants_of_boot_;
  if (!anew && model_.life(current).id.valid() && id != model_.life(current).id) Wrong("a tenant came back as another");
  Life& back = model_.life(current);
  back.id = id;
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
  for (const NamespaceId ns : std::exchange(life.ns, {})) {
    if (ns.valid()) node_.engine().CloseNamespace(ns);
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
}

void Simulation::OnDropped(uint32_t index, uint32_t nonces_below, const absl::StatusOr<uint64_t>& bytes) {
  Say("  ", model_.life(index).rules.uid, bytes.ok() ? " is erased" : " could not be erased");
  // It came back while it was being erased already.
  const bool twice = absl::IsAlreadyExists(bytes.status()) && model_.life(index).was_removed;
  if (!bytes.ok() && !twice && !plan_.disk_lies() && !catalog_failed_) Wrong("a drop failed though nothing is wrong");
  if (bytes.ok() && (last_receipt_.tenant != model_.life(index).name || last_receipt_.bytes() != *bytes ||
                     last_receipt_.unerased_blocks > 0))
    Wrong("the receipt of a drop tells something else");
  model_.EndDrop(index, nonces_below, bytes.ok(), Now());
  ++counts_.drops;
  // What a deletion promised is seen best when nothing but the promise is left.
  crash_next_ = bytes.ok() && plan_.weights[static_cast<size_t>(EventKind::kCrash)] > 0 && random_.Chance(30);
}

// --- devices

void Simulation::DoTrouble() {
  switch (random_.Below(6)) {
    case 0:
      Say("memory is held");
      return node_.memory().Hold();
    case 1:
      if (plan_.populate_failures_percent == 0) return;
      Say("memory is refused");
      return node_.memory().FailNextPopulates(static_cast<int>(random_.Between(1, 3)));
    case 2:
      if (node_.file() == nullptr) return;
      Say("the disk is held");
      return node_.file()->Hold();
    case 3:
      if (node_.catalog() == nullptr) return;
      if (random_.Chance(50)) {
        Say("the catalog is held");
        return node_.catalog()->Hold();
      }
      Say("the catalog is full");
      catalog_failed_ = true;
      return node_.catalog()->FailWrites(absl::ResourceExhaustedError("no space left"));
    case 4:
      if (node_.catalog() == nullptr) return;
      Say("the catalog is synced");
      model_.Synced();
      return node_.SyncCatalog();
    default:
      Say("the trouble is over");
      return EndTrouble();
  }
}

void Simulation::EndTrouble() {
  node_.memory().Release();
  if (node_.file() == nullptr) return;
  node_.file()->Release();
  node_.file()->FailLost();
  node_.catalog()->Release();
  node_.catalog()->FailWrites(absl::OkStatus());
}

// --- crashes

void Simulation::DoCrash() {
  auto kind = Node::CrashKind::kKill;
  if (plan_.nvme_bytes > 0 && plan_.power_cuts && random_.Chance(40)) kind = Node::CrashKind::kPowerCut;
  if (plan_.nvme_bytes > 0 && plan_.loses_catalog && random_.Chance(40)) kind = Node::CrashKind::kLosesCatalog;
  Say("crash", kind == Node::CrashKind::kKill       ? ""
               : kind == Node::CrashKind::kPowerCut ? ", power cut"
                                                    : ", no catalog");
  ++counts_.crashes;
  const bool rests_first = random_.Chance(30) && kind == Node::CrashKind::kKill;
  if (rests_first) ComeToRest();
  if (findings_.any()) return;
  crash_next_ = false;
  std::vector<BlockRef> pins;
  leases_.clear();
  unfinished_.clear();
  finished_.clear();
  reserves_.clear();
  loads_ = 0;
  node_.Crash(kind, &random_);
  node_.AdvanceMs(static_cast<int64_t>(random_.Below(random_.Chance(80) ? 2'000 : 60'000)));
  if (rests_first && !catalog_failed_) pins = model_.DurablePins(Now() + 3 * kTickMs);
  model_.Crash(kind == Node::CrashKind::kPowerCut, kind == Node::CrashKind::kLosesCatalog);
  Boot();
  if (node_.recovered() && !findings_.any()) CheckPins(pins);
}

// What a crash finds on disk then is all that was to be written there.
void Simulation::ComeToRest() {
  EndTrouble();
  for (int round = 0; round < kRestRounds && !findings_.any(); ++round) {
    node_.CompleteAll();
    if (node_.file() != nullptr) node_.file()->FailLost();
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
  counts_.pins_kept += pins.size();
  const engine::EngineStats stats = node_.engine().stats();
  for (const auto& [index, count] : by_life) {
    const uint64_t pinned = StatsOf(stats, model_.life(index).id)->pinned_blocks;
    if (pinned < count)
      Wrong(absl::StrCat(model_.life(index).name, " has ", pinned, " pinned blocks after a crash, must have ", count));
  }
}

void Simulation::Boot() {
  model_.NewBoot();
  model_.SetRecovering(true);
  catalog_failed_ = false;
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
    for (int round = 0; round < kSettleRoundsMax && !node_.recovered(); ++round) {
      node_.CompleteAll();
      if (node_.file() != nullptr) node_.file()->FailLost();
    }
    if (!node_.recovered()) Wrong("recovery never ended");
    if (!findings_.any()) CheckSurvivors(durable);
  }
  for (const uint32_t index : current_) model_.life(index).quota_lowered = false;
}

void Simulation::CheckSurvivors(const std::map<SlotId, uint32_t>& durable) {
  std::vector<uint32_t> promised;
  for (const auto& [slot, nonce] : durable) {
    if (model_.MustHaveSurvived(nonce, Now())) promised.push_back(nonce);
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
  if (places.empty()) return Wrong(absl::StrCat(model_.NameOf(ref), " was durable, and is gone after a crash"));
  ++counts_.survived;
  Life::Block& block = model_.at(ref);
  model_.Found(ref, false, Now());
  block.used_ms = block.access_ms = Now();
  leases_.push_back({ref.life, ref.space, {TakeHold(ref, places[0], places[0].tier == TierKind::kDram, true)}});
  // Read it, too: what it says is checked when it comes.
  durable_read_ = !plan_.disk_lies() && !plan_.power_cuts && !model_.life(ref.life).scribbles;
  if (random_.Chance(50)) Load(leases_.back(), 1);
  node_.CompleteAll();
  durable_read_ = false;
  if (leases_.size() > leases) ReleaseLease(leases, leases_[leases].blocks.size());
}

// --- rest

// Everybody leaves, trouble ends: everything that is under way comes to its end, and nothing is left behind.
void Simulation::DoSettle() {
  Say("everything comes to rest");
  EndTrouble();
  while (!leases_.empty() && !findings_.any()) ReleaseLease(0, leases_[0].blocks.size());
  for (const uint32_t index : current_) {
    for (size_t at = 0; at < model_.life(index).groups.size(); ++at) EndGroup(index, at);
  }
  for (int round = 0; round < kSettleRoundsMax && !findings_.any(); ++round) {
    node_.CompleteAll();
    if (node_.file() != nullptr) node_.file()->FailLost();
    while (!leases_.empty()) ReleaseLease(0, leases_[0].blocks.size());
    Tick();
    if (round % 16 == 15 && AtRest()) break;
  }
  if (findings_.any()) return;
  if (!AtRest()) {
    const engine::EngineStats stats = node_.engine().stats();
    bool dropping = false;
    for (const uint32_t index : current_) dropping |= model_.life(index).dropping;
    return Wrong(absl::StrCat("something that is under way never ends: drop ", dropping, ", reserves ", reserves_.size(),
                              ", loads ", loads_, ", waiting ", stats.waiting_reserves, ", reads ",
                              stats.loads_under_way, ", writes ", stats.writes_under_way, ", leases ",
                              stats.leased_blocks, ", memory ", node_.memory().counts().pending, ", reclaiming ",
                              stats.reclaiming_bytes[TierIndex(TierKind::kDram)]));
  }
  CheckMemoryAtRest();
}

bool Simulation::AtRest() {
  const engine::EngineStats stats = node_.engine().stats();
  bool dropping = false;
  for (const uint32_t index : current_) dropping |= model_.life(index).dropping;
  return !dropping && reserves_.empty() && loads_ == 0 && stats.waiting_reserves == 0 && stats.loads_under_way == 0 &&
         stats.writes_under_way == 0 && stats.leased_blocks == 0 && node_.memory().counts().pending == 0 &&
         stats.reclaiming_bytes[TierIndex(TierKind::kDram)] == 0;
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
