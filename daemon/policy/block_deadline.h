// When the time of a block is up: the rules of TTL, pin and maxAge as pure functions over values. Times are engine
// ticks; precedence is maxAge > pin > TTL (a limit stands between maxAge and pin, and is no matter of time).
// Stateless; any thread.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/block/tier_kind.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::policy {

inline constexpr uint32_t kNoDeadline = UINT32_MAX;

struct BlockAges {
  uint32_t first_commit_tick = 0;
  uint32_t last_access_tick = 0;
  uint32_t pinned_until_tick = 0;  // 0: not pinned
  std::array<bool, kTierCount> resident{};
};

// The block is older than its tenant's maxAge: counts from the first commit, whatever happened since.
bool OverAge(const TenantRules& rules, const BlockAges& ages, uint32_t now_tick);
// Nobody may be served from the copy in `tier`: over age, or idle for longer than the TTL there and not pinned.
bool Expired(const TenantRules& rules, const BlockAges& ages, TierKind tier, uint32_t now_tick);
// The first tick at which something is to be done: a pin ends, a copy is expired, or the block is over age.
// kNoDeadline: never.
uint32_t DeadlineOf(const TenantRules& rules, const BlockAges& ages);
// The tick at which maxAge takes the block; kNoDeadline without one.
uint32_t AgeLimitOf(const TenantRules& rules, const BlockAges& ages);
// A deadline under `after` may be sooner than the same one under `before`.
bool ShortensTimes(const TenantRules& before, const TenantRules& after);
// How far the last access on disk may be behind, in ticks; 0: it need not be kept, for nothing on NVMe expires.
uint32_t RecordPeriodOf(const TenantRules& rules);

}  // namespace kvartal::policy
