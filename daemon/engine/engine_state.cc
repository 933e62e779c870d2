#include "daemon/engine/engine_state.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::engine {
namespace {

// Ticks start here rather than at 0, so that blocks recovered from before this start have a place on the same axis.
constexpr uint32_t kTickOrigin = 1u << 30;
constexpr int64_t kNsPerTick = int64_t{kTickMs} * kNsPerMs;

tier::OwnerUidHash HashOwner(const std::string& uid) {
  const XXH128_hash_t hash = XXH3_128bits(uid.data(), uid.size());
  tier::OwnerUidHash owner;
  static_assert(sizeof(hash) == sizeof(owner));
  std::memcpy(owner.data(), &hash, sizeof(owner));
  return owner;
}

}  // namespace

EngineState::EngineState(const EngineOptions& options_in, const EngineDevices& devices_in,
                         std::shared_ptr<const policy::PolicyTable> policy_in)
    : options(options_in),
      devices(devices_in),
      policy(std::move(policy_in)),
      ledger(policy->capacity()),
      write_budget(options.nvme_write_bytes_per_second, devices.clock->MonotonicNs()),
      timers(kTickOrigin),
      start_ns_(devices.clock->MonotonicNs()),
      start_wall_ms_(devices.clock->WallMs()),
      advanced_ns_(start_ns_) {
  KV_CHECK((devices.nvme == nullptr) == (devices.catalog == nullptr));
  // A wall clock that was set back makes no block younger: dates go on from the last one that is on disk.
  if (devices.catalog != nullptr) {
    start_wall_ms_ = std::max(start_wall_ms_, devices.catalog->kept_time_ms());
    // Nor is anything new taken for what a removal still owes.
    for (const tier::ErasureRecord& erasure : devices.catalog->open_erasures()) {
      start_wall_ms_ = std::max(start_wall_ms_, erasure.before_wall_ms);
    }
  }
  if (devices.ciphers != nullptr) devices.ciphers->DateNoLaterThan(start_wall_ms_);
  ApplyPolicy(policy);
}

TenantState& EngineState::AddTenant(const std::string& name, const tier::OwnerUidHash& owner) {
  auto made = std::make_unique<TenantState>();
  if (free_tenants.empty()) {
    made->id = TenantId(static_cast<uint32_t>(tenant_by_id.size()));
    tenant_by_id.push_back(made.get());
  } else {
    made->id = free_tenants.front();
    free_tenants.pop_front();
    tenant_by_id[made->id.value()] = made.get();
  }
  made->owner = owner;
  made->rules.name = name;
  made->stats.name = name;
  auto orders = policy::NewTenantOrders(options.eviction, devices.nvme == nullptr ? 1 : devices.nvme->map().disks());
  KV_CHECK(orders.ok());  // the configuration allows kEvictionNames alone
  made->orders = *std::move(orders);
  tenants.push_back(std::move(made));
  return *tenants.back();
}

TenantState* EngineState::AddRemoved(const tier::OwnerUidHash& owner) {
  const absl::string_view bytes(reinterpret_cast<const char*>(owner.data()), owner.size());
  TenantState* const tenant = AddPast(owner, absl::StrCat("~", absl::BytesToHexString(bytes)));
  if (tenant != nullptr) tenant_by_owner.try_emplace(owner, tenant->id);
  return tenant;
}

TenantState* EngineState::AddPast(const tier::OwnerUidHash& owner, const std::string& name) {
  if (tenants.size() >= 2 * kTenantsMax) return nullptr;
  TenantState& tenant = AddTenant(name, owner);
  RemoveTenant(tenant);
  SetQuotas(tenant);
  return &tenant;
}

bool EngineState::BeginAnew(TenantState& tenant, const std::string& name) {
  if (tenants.size() >= 2 * kTenantsMax) return false;
  const policy::TenantRules rules = tenant.rules;
  RemoveTenant(tenant);
  tenant.stats.name = name;
  TenantState& anew = AddTenant(rules.name, tenant.owner);
  anew.not_before_ms = tenant.not_before_ms;
  tenant_by_owner[anew.owner] = anew.id;
  SetRules(anew, rules);
  SetQuotas(tenant);
  SetQuotas(anew);
  return true;
}

bool EngineState::Forgettable(const TenantState& tenant) const {
  if (tenant.removed_tick == 0 || !tenant.erased || tenant.dropping || tenant.stats.entries > 0) return false;
  if (!tenant.over_age.owes_nothing() || !tenant.removal.owes_nothing() || !tenant.waiters.empty()) return false;
  if (tenant.reads_under_way + tenant.writes_under_way.all + tenant.takings_under_way + tenant.erases_under_way > 0)
    return false;
  for (const TierKind tier : kAllTiers) {
    if (ledger.account(tenant.id, tier).charged_bytes > 0) return false;
  }
  return tenant.reclaiming_bytes == 0 && tenant.namespaces.empty();
}

void EngineState::Forget(TenantState& tenant) {
  const TenantId id = tenant.id;
  if (auto it = tenant_by_name.find(tenant.rules.name); it != tenant_by_name.end() && it->second == id)
    tenant_by_name.erase(it);
  if (auto it = tenant_by_owner.find(tenant.owner); it != tenant_by_owner.end() && it->second == id)
    tenant_by_owner.erase(it);
  for (auto& other : tenants) {
    for (TierSharing& sharing : other->sharing) {
      if (sharing.victim == id) sharing.victim = TenantId::None();
    }
    for (TenantTierStats& of_tier : other->stats.tiers) {
      for (policy::Tally& tally : of_tier.drops) {
        if (tally.last_taker == id) tally.last_taker = TenantId::None();
      }
    }
  }
  ledger.Forget(id);
  tenant_by_id[id.value()] = nullptr;
  free_tenants.push_back(id);
  std::erase_if(tenants, [&](const auto& each) { return each.get() == &tenant; });
}

// Guarantees end at once; what it has, it keeps until others want the space or the grace is over.
void EngineState::RemoveTenant(TenantState& tenant) {
  if (tenant.removed_tick == 0) tenant.removed_tick = NowTick();
  // A policy that was made anew under the same name is another tenant, and inherits nothing.
  if (policy->FindByName(tenant.rules.name) != nullptr) {
    tenant.stats.name = absl::StrCat(tenant.rules.name, "~", tenant.rules.uid);
  }
  tenant.rules.quota = {};
  tenant.rules.weight = 1;
  tenant.rules.uids.clear();
  tenant.rules.sockets.clear();
}

void EngineState::SetRules(TenantState& tenant, const policy::TenantRules& rules) {
  const bool encrypts = rules.encrypt_nvme && !tenant.rules.encrypt_nvme;
  timers_late = timers_late || encrypts || policy::ShortensTimes(tenant.rules, rules);
  tenant.rules = rules;
  // What is worth a write, where writes are short, is learnt from all uses of its blocks.
  const bool saves_writes = write_budget.limited() && rules.tier(TierKind::kNvme).limit_bytes > 0;
  policy::SetHistoryWanted(saves_writes, &tenant.orders);
  tenant.stats.name = rules.name;
  tenant.removed_tick = 0;
  tenant.erased = false;
  tenant_by_name[rules.name] = tenant.id;
}

void EngineState::SetQuotas(const TenantState& tenant) {
  for (TierKind tier : kAllTiers) {
    policy::TierQuota quota = tenant.rules.tier(tier);
    if (tenant.removed_tick != 0) {
      // On the way back from the disk it gets what it had: who may have it is decided later.
      quota.limit_bytes = recovering ? ledger.capacity_bytes(tier) : ledger.account(tenant.id, tier).charged_bytes;
    }
    ledger.SetQuota(tenant.id, tier, quota);
  }
  if (devices.nvme == nullptr) return;
  devices.nvme->SetWeight(tenant.domain(), tenant.rules.weight);
  SetCipher(tenant);
}

void EngineState::SetCipher(const TenantState& tenant) {
  const policy::TenantRules& rules = tenant.rules;
  std::shared_ptr<const cipher::TenantCipher> cipher;
  // Who was met on the disk alone has no uid: what is left of it can be erased, and nothing else.
  if (devices.ciphers != nullptr && !rules.uid.empty()) {
    cipher = rules.encrypt_nvme && tenant.removed_tick == 0
                 ? devices.ciphers->FindOrMake(tenant.owner, rules.uid,
                                               std::max(WallMsOfTick(NowTick()), tenant.not_before_ms))
                 : devices.ciphers->Find(tenant.owner, rules.uid);
  }
  devices.nvme->SetCipher(tenant.domain(), cipher, rules.encrypt_nvme);
}

int64_t EngineState::RemovalDateMs(const TenantState& tenant) const {
  const int64_t after_all_ms = WallMsOfTick(NowTick() + 1);
  return std::max(after_all_ms, tenant.not_before_ms + 1);
}

int64_t EngineState::FirstCommitMs(const index::Entry& entry) const {
  return std::max(WallMsOfTick(entry.first_commit_tick), TenantOf(entry).not_before_ms);
}

void EngineState::ForgetCipher(const tier::OwnerUidHash& owner, int64_t before_wall_ms) {
  if (devices.ciphers == nullptr) return;
  devices.ciphers->Forget(owner, before_wall_ms);
  const TenantState* const tenant = FindOwner(owner);
  if (tenant != nullptr) SetCipher(*tenant);
}

void EngineState::ApplyPolicy(std::shared_ptr<const policy::PolicyTable> next) {
  policy = std::move(next);
  for (auto& tenant : tenants) {
    if (!InPolicy(*tenant)) RemoveTenant(*tenant);
  }
  for (const policy::TenantRules& rules : policy->tenants()) {
    // The uid is who it is: one that comes back within its grace has what it had, whatever it is called now.
    const tier::OwnerUidHash owner = HashOwner(rules.uid);
    TenantState* known = FindOwner(owner);
    const bool same = known != nullptr && (known->removed_tick != 0 || known->rules.name == rules.name);
    TenantState& tenant = same ? *known : AddTenant(rules.name, owner);
    tenant_by_owner.try_emplace(owner, tenant.id);
    SetRules(tenant, rules);
  }
  for (auto& tenant : tenants) SetQuotas(*tenant);
}

bool EngineState::InPolicy(const TenantState& tenant) const {
  const policy::TenantRules* rules = policy->FindByName(tenant.rules.name);
  return rules != nullptr && rules->uid == tenant.rules.uid;
}

TenantState* EngineState::FindOwner(const tier::OwnerUidHash& owner) const {
  auto it = tenant_by_owner.find(owner);
  return it == tenant_by_owner.end() ? nullptr : tenant_by_id[it->second.value()];
}

absl::Status EngineState::OpenMemory(TenantState& tenant) {
  if (tenant.memory_open) return absl::OkStatus();
  KV_RETURN_IF_ERROR(devices.dram->OpenDomain(tenant.domain()));
  tenant.memory_open = true;
  return absl::OkStatus();
}

tier::BlockIdentity EngineState::IdentityOf(EntryId id) const {
  const index::Entry& entry = index.at(id);
  const NamespaceState& space = ns(entry.ns);
  tier::BlockIdentity identity;
  identity.key = entry.key;
  identity.digest = space.digest;
  identity.owner = tenant(space.tenant).owner;
  if (entry.parent.valid()) identity.parent = index.at(entry.parent).key;
  identity.depth = entry.depth;
  identity.payload_bytes = space.layout.SlotBytes();
  identity.tokens_per_block = space.layout.tokens_per_block;
  identity.shard_count = space.layout.shard_count;
  identity.shard_bytes = space.layout.shard_bytes;
  return identity;
}

EntryId EngineState::FindBlock(const tier::BlockIdentity& identity) const {
  const TenantState* owner = FindOwner(identity.owner);
  if (owner == nullptr) return EntryId::None();
  auto it = namespace_by_digest.find(std::make_pair(owner->id.value(), identity.digest));
  return it == namespace_by_digest.end() ? EntryId::None() : index.Find(it->second, identity.key);
}

bool EngineState::NvmeReadable(EntryId id) const {
  return devices.nvme->DeviceStateOf(index.at(id).copy(TierKind::kNvme).slot) != tier::DeviceState::kOffline;
}

void EngineState::NoteFillingBesideCopy(EntryId id) {
  const ReservationId reservation = filling_by_entry.at(id);
  fillings_beside_copy.emplace(fillings.at(reservation).since_tick, reservation);
}

uint32_t EngineState::ThatEnd(const WritesByDisk& writes) const {
  if (writes.all == 0) return 0;
  uint32_t count = writes.all;
  const tier::DiskSet hanging = devices.nvme->hanging();
  for (size_t disk = 0; disk < writes.on.size(); ++disk) {
    if ((hanging & tier::SetOfDisk(disk)) != tier::kNoDisk) count -= writes.on[disk];
  }
  return count;
}

bool EngineState::NvmeUsable(const TenantState& tenant) const {
  return devices.nvme != nullptr && !recovering && tenant.rules.tier(TierKind::kNvme).limit_bytes > 0 &&
         devices.nvme->device_state() == tier::DeviceState::kHealthy;
}

uint32_t EngineState::NowTick() const {
  return kTickOrigin + static_cast<uint32_t>((devices.clock->MonotonicNs() - start_ns_) / kNsPerTick);
}

int64_t EngineState::WallMsOfTick(uint32_t tick) const {
  return start_wall_ms_ + (int64_t{tick} - int64_t{kTickOrigin}) * kTickMs;
}

uint32_t EngineState::TickOfWallMs(int64_t wall_ms) const {
  const int64_t tick = int64_t{kTickOrigin} + (wall_ms - start_wall_ms_) / int64_t{kTickMs};
  return static_cast<uint32_t>(std::clamp<int64_t>(tick, 0, NowTick()));
}

policy::BlockAges EngineState::AgesOf(EntryId id, const index::Entry& entry, uint32_t now_tick) const {
  policy::BlockAges ages;
  ages.first_commit_tick = entry.first_commit_tick;
  ages.last_access_tick = entry.lease_count > 0 ? now_tick : entry.last_access_tick;
  if (entry.pinned) ages.pinned_until_tick = tenant(ns(entry.ns).tenant).pins.at(id);
  for (TierKind tier : kAllTiers) ages.resident[TierIndex(tier)] = entry.resident(tier);
  return ages;
}

bool EngineState::OverAge(EntryId id, uint32_t now_tick) const {
  return policy::OverAge(tenant(ns(index.at(id).ns).tenant).rules, AgesOf(id, now_tick), now_tick);
}

bool EngineState::Expired(EntryId id, TierKind tier, uint32_t now_tick) const {
  return policy::Expired(tenant(ns(index.at(id).ns).tenant).rules, AgesOf(id, now_tick), tier, now_tick);
}

bool EngineState::FindTier(EntryId id, uint32_t now_tick, TierKind* tier) const {
  const index::Entry& entry = index.at(id);
  const TenantState& owner = tenant(ns(entry.ns).tenant);
  if (entry.state != BlockState::kCommitted || entry.erasing || owner.dropping) return false;
  const policy::BlockAges ages = AgesOf(id, entry, now_tick);
  for (TierKind candidate : {TierKind::kDram, TierKind::kNvme}) {
    if (!entry.resident(candidate) || policy::Expired(owner.rules, ages, candidate, now_tick)) continue;
    if (candidate == TierKind::kNvme && !NvmeReadable(id)) continue;  // a miss for now, and still there
    *tier = candidate;
    return true;
  }
  return false;
}

bool EngineState::NvmeCopyIsDue(const index::Entry& entry) const {
  if (!entry.resident(TierKind::kNvme)) return false;
  const tier::Secrecy secrecy = devices.nvme->SecrecyOf(entry.copy(TierKind::kNvme).slot);
  if (secrecy == tier::Secrecy::kAsAsked) return false;
  // Who is away may come back with what decrypts it.
  const TenantState& owner = TenantOf(entry);
  return secrecy == tier::Secrecy::kInTheClear || (owner.removed_tick == 0 && devices.nvme->MayWrite(owner.domain()));
}

void EngineState::AdvanceLedger() {
  const int64_t elapsed_ms = (devices.clock->MonotonicNs() - advanced_ns_) / kNsPerMs;
  ledger.Advance(static_cast<uint64_t>(elapsed_ms));
  advanced_ns_ += elapsed_ms * kNsPerMs;  // the rest of a millisecond is the next call's
}

uint8_t EngineState::AccessPeriodOf(const index::Entry& entry) const {
  const uint32_t period = policy::RecordPeriodOf(tenant(ns(entry.ns).tenant).rules);
  return period == 0 ? 0 : entry.last_access_tick / period % 4;
}

uint32_t EngineState::NextLook(EntryId id, uint32_t now_tick) const {
  const index::Entry& entry = index.at(id);
  const policy::TenantRules& rules = tenant(ns(entry.ns).tenant).rules;
  if (NvmeCopyIsDue(entry)) return now_tick;
  const uint32_t deadline = policy::DeadlineOf(rules, AgesOf(id, entry, now_tick));
  const uint32_t period = policy::RecordPeriodOf(rules);
  return period > 0 && entry.resident(TierKind::kNvme) ? std::min(deadline, now_tick + period) : deadline;
}

uint32_t EngineState::PinnedUntilWallS(EntryId id) const {
  const uint32_t until_tick = tenant(ns(index.at(id).ns).tenant).pins.at(id);
  return static_cast<uint32_t>((WallMsOfTick(until_tick) + 999) / 1000);
}

void EngineState::Arm(EntryId id) {
  const uint32_t due_tick = NextLook(id, NowTick());
  if (due_tick < timers.DueOf(id)) timers.Schedule(id, due_tick);
}

void EngineState::NoteRefusal(TenantState& tenant, TierKind tier, policy::Refusal reason, uint64_t bytes) {
  policy::Tally& tally = tenant.stats.tiers[TierIndex(tier)].refusal(reason);
  ++tally.count;
  tally.bytes += bytes;
  tally.last_wall_ms = devices.clock->WallMs();
}

void EngineState::NoteDrop(TenantState& tenant, TierKind tier, policy::DropCause cause, uint64_t bytes) {
  TenantTierStats& stats = tenant.stats.tiers[TierIndex(tier)];
  const policy::Account& account = ledger.account(tenant.id, tier);
  const bool within = account.charged_bytes <= account.guarantee_bytes;
  if (cause.reason == policy::DropReason::kTakenByOther && within) ++stats.taken_within_guarantee;
  policy::Tally& tally = stats.drop(cause.reason);
  ++tally.count;
  tally.bytes += bytes;
  tally.last_wall_ms = devices.clock->WallMs();
  tally.last_taker = cause.taker;
}

// Of a block that left, for whoever remembers it. The same in every process: what an order learnt must not depend on a
// seed.
uint64_t EngineState::FingerprintOf(NamespaceId ns, const BlockKey& key) {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15ull;
  return key.Prefix64() + ns.value() * kMix;
}

void EngineState::NoteMisses(TenantState& tenant, NamespaceId ns, std::span<const BlockKey> keys,
                             std::span<const EntryId> found) {
  policy::GhostList& dram = tenant.shared(TierKind::kDram).ghosts;
  policy::GhostList& nvme = tenant.shared(TierKind::kNvme).ghosts;
  if (dram.empty() && nvme.empty()) return;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool in_dram = found[i].valid() && index.at(found[i]).resident(TierKind::kDram);
    const bool on_nvme = found[i].valid() && index.at(found[i]).resident(TierKind::kNvme);
    if (!in_dram) dram.Miss(FingerprintOf(ns, keys[i]));
    if (!in_dram && !on_nvme) nvme.Miss(FingerprintOf(ns, keys[i]));
  }
}

void EngineState::RememberLost(TenantState& tenant, TierKind tier, const index::Entry& entry) {
  tenant.shared(tier).ghosts.Add(FingerprintOf(entry.ns, entry.key), SlotBytesOf(entry));
}

void EngineState::CountTakingTick() {
  for (uint32_t& ticks : taking_ticks) ticks -= std::min(ticks, 1u);
  for (uint32_t& ticks : waiting_ticks) ticks -= std::min(ticks, 1u);
}

void EngineState::AddNvmeStats(EngineStats* out) const {
  out->nvme_present = true;
  out->nvme_disks = devices.nvme->disk_stats();
  tier::NvmeCounters counters;
  for (const tier::DiskStats& disk : out->nvme_disks) counters += disk.counters;
  out->nvme_state = devices.nvme->device_state();
  out->nvme_quarantined_slots = counters.quarantined_slots;
  out->nvme_read_errors = counters.read_errors;
  out->nvme_write_errors = counters.write_errors;
  const int64_t now_ns = devices.clock->MonotonicNs();
  out->nvme_written_bytes = counters.bytes_written;
  out->write_budget_bytes_per_second = write_budget.bytes_per_second();
  out->write_budget_saved_bytes = write_budget.limited() ? write_budget.saved_bytes(now_ns) : 0;
  out->write_budget_asks = write_budget.Asks(now_ns);
  out->nvme_mismatches = counters.mismatches();
}

EngineStats EngineState::Stats() const {
  EngineStats out;
  for (const auto& tenant : tenants) {
    TenantStats copy = tenant->stats;
    copy.id = tenant->id;
    copy.removed = tenant->removed_tick != 0;
    copy.encrypts_nvme = tenant->rules.encrypt_nvme;
    for (TierKind tier : kAllTiers) {
      const policy::Account& account = ledger.account(tenant->id, tier);
      TenantTierStats& tier_stats = copy.tiers[TierIndex(tier)];
      tier_stats.charged_bytes = account.charged_bytes;
      tier_stats.limit_bytes = account.limit_bytes;
      tier_stats.guarantee_bytes = account.guarantee_bytes;
      tier_stats.peak_bytes = account.peak_bytes;
      tier_stats.overshoot_bytes = account.overshoot_bytes;
      tier_stats.fair_share_bytes = tenant->shared(tier).share_bytes;
      tier_stats.demand_bytes = tenant->shared(tier).demand_bytes;
      tier_stats.byte_seconds = account.byte_seconds;
    }
    copy.pinned_blocks = tenant->pins.size();
    copy.pinned_bytes = std::accumulate(tenant->pinned_bytes.begin(), tenant->pinned_bytes.end(), uint64_t{0});
    copy.leased_bytes = tenant->leased_bytes;
    copy.kept_bytes = tenant->kept_bytes;
    copy.reclaiming_bytes = tenant->reclaiming_bytes;
    if (tenant->memory_open) {
      copy.tiers[TierIndex(TierKind::kDram)].granted_empty_bytes = devices.dram->EmptyBytes(tenant->domain());
    }
    out.tenants.push_back(std::move(copy));
  }
  for (TierKind tier : kAllTiers) {
    out.capacity_bytes[TierIndex(tier)] = ledger.capacity_bytes(tier);
    out.charged_bytes[TierIndex(tier)] = ledger.charged_bytes(tier);
    out.reclaiming_bytes[TierIndex(tier)] = ledger.reclaiming_bytes(tier);
  }
  out.entries = index.size();
  out.index_bytes = index.MemoryBytes();
  out.timers = timers.size();
  out.timer_bytes = timers.MemoryBytes();
  out.leased_blocks = held_blocks;
  out.waiting_requests = waiting;
  out.loads_under_way = reads_under_way;
  out.writes_under_way = writes_under_way;
  out.stray_bytes_punched = stray_bytes_punched;
  out.charges = ledger.charges();
  out.refusals_decided = refusals_decided;
  out.refusals_answered = refusals_answered;
  out.latency = latency;
  out.policy_version = policy->version();
  for (const TierKind tier : kAllTiers) out.guarantee_waits[TierIndex(tier)] = GuaranteeWaits(tier);
  out.recovering = recovering;
  out.draining = draining;
  if (devices.nvme != nullptr) AddNvmeStats(&out);
  return out;
}

}  // namespace kvartal::engine
