#include "daemon/policy/block_deadline.h"

#include <algorithm>

#include "daemon/base/limits.h"

namespace kvartal::policy {
namespace {

// The first tick at which `ms` have passed since `tick`.
uint32_t After(uint32_t tick, uint64_t ms) {
  const uint64_t due = tick + (ms + kTickMs - 1) / kTickMs;
  return static_cast<uint32_t>(std::min<uint64_t>(due, kNoDeadline));
}

}  // namespace

uint32_t AgeLimitOf(const TenantRules& rules, const BlockAges& ages) {
  return rules.max_age_ms == 0 ? kNoDeadline : After(ages.first_commit_tick, rules.max_age_ms);
}

bool OverAge(const TenantRules& rules, const BlockAges& ages, uint32_t now_tick) {
  return now_tick >= AgeLimitOf(rules, ages);
}

bool Expired(const TenantRules& rules, const BlockAges& ages, TierKind tier, uint32_t now_tick) {
  if (OverAge(rules, ages, now_tick)) return true;
  const uint64_t ttl_ms = rules.ttl_ms[TierIndex(tier)];
  return ttl_ms > 0 && now_tick >= ages.pinned_until_tick && now_tick >= After(ages.last_access_tick, ttl_ms);
}

uint32_t DeadlineOf(const TenantRules& rules, const BlockAges& ages) {
  uint32_t first = AgeLimitOf(rules, ages);
  if (ages.pinned_until_tick > 0) return std::min(first, ages.pinned_until_tick);
  for (TierKind tier : kAllTiers) {
    const uint64_t ttl_ms = rules.ttl_ms[TierIndex(tier)];
    if (ttl_ms > 0 && ages.resident[TierIndex(tier)]) first = std::min(first, After(ages.last_access_tick, ttl_ms));
  }
  return first;
}

bool ShortensTimes(const TenantRules& before, const TenantRules& after) {
  const auto shorter = [](uint64_t before_ms, uint64_t after_ms) {
    return after_ms > 0 && (before_ms == 0 || after_ms < before_ms);
  };
  bool shortens = shorter(before.max_age_ms, after.max_age_ms);
  for (TierKind tier : kAllTiers) {
    shortens = shortens || shorter(before.ttl_ms[TierIndex(tier)], after.ttl_ms[TierIndex(tier)]);
  }
  return shortens;
}

uint32_t RecordPeriodOf(const TenantRules& rules) {
  const uint64_t ttl_ms = rules.ttl_ms[TierIndex(TierKind::kNvme)];
  if (ttl_ms == 0) return 0;
  return static_cast<uint32_t>(std::max<uint64_t>(ttl_ms / kTickMs / kRecordPeriods, kRecordPeriodTicksMin));
}

}  // namespace kvartal::policy
