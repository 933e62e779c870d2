// Who may hold how much of a tier, and whose space goes when it is full: the rule of sharing as pure functions over
// plain numbers. The same at every tier; no clock, no state, no dependence on the order of tenants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "daemon/policy/policy_table.h"

namespace kvartal::policy {

// One tenant in one tier, as far as sharing is concerned.
struct Standing {
  uint64_t used_bytes = 0;    // charged
  uint64_t demand_bytes = 0;  // what it uses, and what it was missed for
  uint64_t guarantee_bytes = 0;
  uint64_t limit_bytes = 0;
  uint64_t share_bytes = 0;  // of the last water-filling; input of the decisions, not of FairShares
  uint32_t weight = 1;
  SlaTier sla = SlaTier::kStandard;
  bool idle_only = false;  // above its guarantee it gets only what nobody else wants: Basic in the fastest tier

  // What nobody may push it below, and what it may take from others up to.
  uint64_t entitled_bytes() const { return guarantee_bytes > share_bytes ? guarantee_bytes : share_bytes; }
  // Somebody short is why caps hold; for who gets only what is idle, nobody is held back.
  bool short_of_demand() const { return !idle_only && used_bytes < demand_bytes && used_bytes < limit_bytes; }
};

// The soft cap of every tenant, in bytes: it holds only while someone else is short.
uint64_t SoftCapBytes(uint64_t capacity_bytes, uint32_t soft_cap_percent);

// Water-filling: s = min(demand, max(cap, guarantee), limit, guarantee + weight * level), the level such that the
// shares fill the capacity, then once more without the cap for what is left; those that are `idle_only` get their
// guarantees with the rest and the remainder of the capacity after it. Exact but for less than a byte a tenant.
// Guarantees that together exceed the capacity (a capacity that shrank) count in proportion. O(tenants log tenants).
std::vector<uint64_t> FairShares(std::span<const Standing> tenants, uint64_t capacity_bytes, uint64_t cap_bytes);

// What a tenant may do in a full tier to get `bytes` more.
enum class Claim : uint8_t {
  kNone,       // it has its share: room comes from its own blocks
  kShare,      // it is below its fair share: from those above theirs
  kGuarantee,  // it is below its guarantee: from everybody above theirs, and never refused
};
inline constexpr size_t kClaimCount = 3;
Claim ClaimOf(const Standing& taker, uint64_t bytes);

// The position of the tenant to take from, none when nobody has to give: of those above what they are entitled to
// (their guarantees alone, when the claim is a guarantee's), the one furthest above it for its weight; among equals
// Basic before Standard before Premium, then the first. `may_give` tells positions apart that have nothing to give now.
std::optional<size_t> ChooseVictim(std::span<const Standing> tenants, size_t taker, Claim claim,
                                   const std::vector<bool>& may_give);
// Whether a tenant is one of those: for going on with a victim without looking at all of them again.
bool MayBeVictim(const Standing& victim, Claim claim);

}  // namespace kvartal::policy
