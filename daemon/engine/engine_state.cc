#include "daemon/engine/engine_state.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace kvartal::engine {
namespace {

// Ticks start here rather than at 0, so that blocks recovered from before this start have a place on the same axis.
constexpr uint32_t kTickOrigin = 1u << 30;
constexpr int64_t kNsPerTick = int64_t{kTickMs} * 1'000'000;

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
      start_ns_(devices.clock->MonotonicNs()),
      start_wall_ms_(devices.clock->WallMs()),
      advanced_ns_(start_ns_) {
  KV_CHECK((devices.nvme == nullptr) == (devices.catalog == nullptr));
  ApplyPolicy(policy);
}

TenantState& EngineState::AddTenant(const std::string& name) {
  auto made = std::make_unique<TenantState>();
  made->id = TenantId(static_cast<uint32_t>(tenants.size()));
  made->stats.name = name;
  for (auto& order : made->orders) {
    auto created = policy::NewEvictionOrder(options.eviction);
    KV_CHECK(created.ok());  // the configuration was validated against the same names
    order = *std::move(created);
  }
  tenant_by_name[name] = made->id;
  tenants.push_back(std::move(made));
  return *tenants.back();
}

void EngineState::ApplyPolicy(std::shared_ptr<const policy::PolicyTable> next) {
  policy = std::move(next);
  for (auto& tenant : tenants) {
    if (InPolicy(*tenant)) continue;
    // A policy that was made anew under the same name is another tenant, and inherits nothing.
    if (policy->FindByName(tenant->rules.name) != nullptr)
      tenant->stats.name = tenant->rules.name + "~" + tenant->rules.uid;
    tenant->rules.quota = {};
    tenant->rules.uids.clear();
    tenant->rules.sockets.clear();
  }
  for (const policy::TenantRules& rules : policy->tenants()) {
    auto it = tenant_by_name.find(rules.name);
    const bool known = it != tenant_by_name.end() && tenants[it->second.value()]->rules.uid == rules.uid;
    TenantState& tenant = known ? *tenants[it->second.value()] : AddTenant(rules.name);
    tenant.rules = rules;
    tenant.owner = HashOwner(rules.uid);
  }
  for (auto& tenant : tenants) {
    for (TierKind tier : kAllTiers) ledger.SetQuota(tenant->id, tier, tenant->rules.tier(tier));
  }
}

bool EngineState::InPolicy(const TenantState& tenant) const {
  const policy::TenantRules* rules = policy->FindByName(tenant.rules.name);
  return rules != nullptr && rules->uid == tenant.rules.uid;
}

TenantState* EngineState::FindOwner(const tier::OwnerUidHash& owner) const {
  for (const auto& tenant : tenants) {
    if (tenant->owner == owner && InPolicy(*tenant)) return tenant.get();
  }
  return nullptr;
}

absl::StatusOr<NamespaceId> EngineState::OpenNamespace(TenantId tenant_id, const NamespaceDigest& digest,
                                                       const ModelLayout& layout) {
  KV_RETURN_IF_ERROR(ValidateLayout(layout));
  const auto key = std::make_pair(tenant_id.value(), digest);
  if (auto it = namespace_by_digest.find(key); it != namespace_by_digest.end()) {
    const ModelLayout& known = ns(it->second).layout;
    if (known == layout) return it->second;
    return absl::FailedPreconditionError(absl::StrCat(
        "this namespace digest is open with another layout (", known.tokens_per_block, " tokens, ", known.shard_count,
        " x ", known.shard_bytes, " bytes; asked: ", layout.tokens_per_block, " tokens, ", layout.shard_count, " x ",
        layout.shard_bytes, "): put the page layout into the digest"));
  }
  TenantState& owner = tenant(tenant_id);
  if (owner.namespaces >= kNamespacesPerTenantMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("tenant ", owner.rules.name, " has ", owner.namespaces,
                     " namespaces open, the maximum: reuse digests or restart the daemon"));
  }
  ++owner.namespaces;
  const NamespaceId id(static_cast<uint32_t>(namespaces.size()));
  namespaces.push_back({tenant_id, digest, layout});
  namespace_by_digest[key] = id;
  return id;
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

bool EngineState::NvmeUsable(const TenantState& tenant) const {
  return devices.nvme != nullptr && !recovering && tenant.rules.tier(TierKind::kNvme).limit_bytes > 0 &&
         devices.nvme->stats().healthy;
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

bool EngineState::OverAge(const index::Entry& entry, uint32_t now_tick) const {
  const uint64_t max_age_ms = tenant(ns(entry.ns).tenant).rules.max_age_ms;
  return max_age_ms > 0 && uint64_t{now_tick - entry.first_commit_tick} * kTickMs >= max_age_ms;
}

bool EngineState::Expired(const index::Entry& entry, TierKind tier, uint32_t now_tick) const {
  const policy::TenantRules& rules = tenant(ns(entry.ns).tenant).rules;
  if (OverAge(entry, now_tick)) return true;
  const uint64_t ttl_ms = rules.ttl_ms[TierIndex(tier)];
  return ttl_ms > 0 && !entry.pinned && uint64_t{now_tick - entry.last_access_tick} * kTickMs >= ttl_ms;
}

bool EngineState::FindTier(const index::Entry& entry, uint32_t now_tick, TierKind* tier) const {
  if (entry.state != BlockState::kCommitted || tenant(ns(entry.ns).tenant).dropping) return false;
  for (TierKind candidate : {TierKind::kDram, TierKind::kNvme}) {
    if (!entry.resident(candidate) || Expired(entry, candidate, now_tick)) continue;
    *tier = candidate;
    return true;
  }
  return false;
}

void EngineState::AdvanceLedger() {
  constexpr int64_t kNsPerMs = 1'000'000;
  const int64_t elapsed_ms = (devices.clock->MonotonicNs() - advanced_ns_) / kNsPerMs;
  ledger.Advance(static_cast<uint64_t>(elapsed_ms));
  advanced_ns_ += elapsed_ms * kNsPerMs;  // the rest of a millisecond is the next call's
}

void EngineState::NoteRefusal(TenantState& tenant, TierKind tier, policy::Refusal reason, uint64_t bytes) {
  policy::Tally& tally = tenant.stats.tiers[TierIndex(tier)].refusal(reason);
  ++tally.count;
  tally.bytes += bytes;
  tally.last_wall_ms = devices.clock->WallMs();
}

void EngineState::NoteDrop(TenantState& tenant, TierKind tier, policy::DropCause cause, uint64_t bytes) {
  policy::Tally& tally = tenant.stats.tiers[TierIndex(tier)].drop(cause.reason);
  ++tally.count;
  tally.bytes += bytes;
  tally.last_wall_ms = devices.clock->WallMs();
  tally.last_taker = cause.taker;
}

bool EngineState::MayPark(const TenantState& tenant) const {
  return waiting < kWaitingMax && tenant.waiters.size() < kWaitingPerTenantMax;
}

bool EngineState::Park(TenantState& tenant, std::unique_ptr<Waiter> waiter) {
  if (!MayPark(tenant)) return false;
  ++waiting;
  tenant.waiters.push_back(std::move(waiter));
  return true;
}

void EngineState::Wake(TenantState& tenant) {
  if (tenant.waiters.empty() || waking_) return;
  waking_ = true;
  while (!tenant.waiters.empty()) {
    // Out of the queue while it runs: a finished waiter may call out and queue new ones.
    std::unique_ptr<Waiter> waiter = std::move(tenant.waiters.front());
    tenant.waiters.pop_front();
    if (!waiter->Retry()) {
      tenant.waiters.push_front(std::move(waiter));
      break;
    }
    --waiting;
  }
  waking_ = false;
}

void EngineState::WakeAll() {
  for (auto& tenant : tenants) Wake(*tenant);
}

EngineStats EngineState::Stats() const {
  EngineStats out;
  for (const auto& tenant : tenants) {
    TenantStats copy = tenant->stats;
    for (TierKind tier : kAllTiers) {
      const policy::Account& account = ledger.account(tenant->id, tier);
      TenantTierStats& tier_stats = copy.tiers[TierIndex(tier)];
      tier_stats.charged_bytes = account.charged_bytes;
      tier_stats.limit_bytes = account.limit_bytes;
      tier_stats.guarantee_bytes = account.guarantee_bytes;
      tier_stats.peak_bytes = account.peak_bytes;
      tier_stats.byte_seconds = account.byte_seconds;
    }
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
  out.leased_blocks = held_blocks;
  out.waiting_reserves = waiting;
  out.loads_under_way = reads_under_way;
  out.writes_under_way = writes_under_way;
  out.stray_bytes_punched = stray_bytes_punched;
  out.policy_version = policy->version();
  out.recovering = recovering;
  out.draining = draining;
  if (devices.nvme != nullptr) {
    const tier::NvmeCounters& counters = devices.nvme->counters();
    out.nvme_present = true;
    out.nvme_healthy = devices.nvme->stats().healthy;
    out.nvme_read_errors = counters.read_errors;
    out.nvme_write_errors = counters.write_errors;
    out.nvme_mismatches = counters.header_mismatches + counters.checksum_mismatches;
  }
  return out;
}

}  // namespace kvartal::engine
