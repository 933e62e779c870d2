#include "daemon/engine/shares.h"

#include <algorithm>
#include <vector>

namespace kvartal::engine {

using policy::Claim;
using policy::Standing;

TierKind Shares::FastestTier() const {
  for (const TierKind tier : kAllTiers) {
    if (state_.ledger.capacity_bytes(tier) > 0) return tier;
  }
  return TierKind::kNvme;
}

Standing Shares::StandingOf(const TenantState& tenant, TierKind tier) const {
  const policy::Account& account = state_.ledger.account(tenant.id, tier);
  Standing standing;
  standing.used_bytes = account.charged_bytes;
  standing.demand_bytes = tenant.shared(tier).demand_bytes;
  standing.guarantee_bytes = account.guarantee_bytes;
  standing.limit_bytes = account.limit_bytes;
  standing.share_bytes = tenant.shared(tier).share_bytes;
  standing.weight = tenant.rules.weight;
  standing.sla = tenant.rules.sla;
  standing.idle_only = tenant.rules.sla == policy::SlaTier::kBasic && tier == FastestTier();
  return standing;
}

void Shares::Tick() {
  if (state_.NowTick() < next_pour_tick_) return;
  next_pour_tick_ = state_.NowTick() + kSharePeriodTicks;
  for (auto& tenant : state_.tenants) {
    for (TierSharing& sharing : tenant->sharing) sharing.ghosts.Fade();
  }
  Pour();
  for (auto& tenant : state_.tenants) {
    for (TierSharing& sharing : tenant->sharing) sharing.ran_out = false;
  }
}

void Shares::Pour() {
  for (const TierKind tier : kAllTiers) Pour(tier);
}

// Of an NVMe tier what its slots can cover: the books count disks that are absent, too.
uint64_t Shares::PouredBytes(TierKind tier) const {
  const uint64_t capacity = state_.ledger.capacity_bytes(tier);
  if (tier != TierKind::kNvme || state_.devices.nvme == nullptr) return capacity;
  return std::min(capacity, state_.devices.nvme->stats().capacity_bytes);
}

void Shares::Pour(TierKind tier) {
  const uint64_t capacity = PouredBytes(tier);
  if (capacity == 0 || state_.tenants.empty()) return;
  const uint64_t step = std::max(capacity / 100 * kShareStepPercent, kShareStepBytes);
  const uint64_t ghost_keys = kGhostKeysMax / state_.tenants.size();
  std::vector<Standing> standings;
  standings.reserve(state_.tenants.size());
  for (auto& tenant : state_.tenants) {
    TierSharing& sharing = tenant->shared(tier);
    Standing standing = StandingOf(*tenant, tier);
    sharing.ghosts.SetBounds(std::max(standing.guarantee_bytes, capacity / kGhostCapacityParts), ghost_keys);
    sharing.demand_bytes = standing.used_bytes + sharing.ghosts.missed_bytes() + (sharing.ran_out ? step : 0);
    standing.demand_bytes = sharing.demand_bytes;
    standings.push_back(standing);
  }
  const std::vector<uint64_t> shares = policy::FairShares(
      standings, capacity, policy::SoftCapBytes(state_.ledger.capacity_bytes(tier), state_.policy->soft_cap_percent()));
  state_.short_tenants[TierIndex(tier)] = 0;
  for (size_t i = 0; i < standings.size(); ++i) {
    state_.tenants[i]->shared(tier).share_bytes = shares[i];
    if (standings[i].short_of_demand()) ++state_.short_tenants[TierIndex(tier)];
  }
}

Claim Shares::ClaimOf(const TenantState& tenant, TierKind tier, uint64_t bytes) const {
  return policy::ClaimOf(StandingOf(tenant, tier), bytes);
}

uint64_t Shares::EntitledRoom(const TenantState& tenant, TierKind tier) const {
  const Standing standing = StandingOf(tenant, tier);
  return standing.entitled_bytes() - std::min(standing.entitled_bytes(), standing.used_bytes);
}

uint64_t Shares::CapBytes(const TenantState& tenant, TierKind tier) const {
  const uint64_t cap = policy::SoftCapBytes(state_.ledger.capacity_bytes(tier), state_.policy->soft_cap_percent());
  return std::max(cap, tenant.rules.tier(tier).guarantee_bytes);
}

bool Shares::AboveCap(const TenantState& tenant, TierKind tier) const {
  const Standing standing = StandingOf(tenant, tier);
  const uint32_t itself = standing.short_of_demand() ? 1 : 0;
  return state_.short_tenants[TierIndex(tier)] > itself && standing.used_bytes >= CapBytes(tenant, tier);
}

void Shares::NoteRanOut(TenantState& tenant, TierKind tier) { tenant.shared(tier).ran_out = true; }

TenantState* Shares::Victim(TenantState& taker, TierKind tier, Claim claim) {
  TierSharing& sharing = taker.shared(tier);
  const uint32_t now_tick = state_.NowTick();
  if (sharing.victim.valid()) {
    TenantState& victim = state_.tenant(sharing.victim);
    const bool gives = victim.shared(tier).stuck_tick[static_cast<size_t>(claim)] != now_tick;
    if (gives && policy::MayBeVictim(StandingOf(victim, tier), claim)) return &victim;
  }
  std::vector<Standing> standings;
  std::vector<bool> may_give;
  standings.reserve(state_.tenants.size());
  may_give.reserve(state_.tenants.size());
  size_t taker_at = 0;
  for (const auto& tenant : state_.tenants) {
    if (tenant.get() == &taker) taker_at = standings.size();
    standings.push_back(StandingOf(*tenant, tier));
    may_give.push_back(tenant->shared(tier).stuck_tick[static_cast<size_t>(claim)] != now_tick);
  }
  const auto chosen = policy::ChooseVictim(standings, taker_at, claim, may_give);
  sharing.victim = chosen.has_value() ? state_.tenants[*chosen]->id : TenantId::None();
  return chosen.has_value() ? state_.tenants[*chosen].get() : nullptr;
}

void Shares::NoteStuck(TenantState& taker, TenantState& victim, TierKind tier, Claim claim) {
  victim.shared(tier).stuck_tick[static_cast<size_t>(claim)] = state_.NowTick();
  taker.shared(tier).victim = TenantId::None();
}

bool Shares::Owed(const TenantState& taker, TierKind tier, Claim claim) const {
  return std::any_of(state_.tenants.begin(), state_.tenants.end(), [&](const auto& tenant) {
    return tenant.get() != &taker && policy::MayBeVictim(StandingOf(*tenant, tier), claim);
  });
}

}  // namespace kvartal::engine
