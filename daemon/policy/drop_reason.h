// Why a copy left its tier, and what such decisions add up to. Every copy that goes has one of these: counters,
// metrics and `kvartalctl explain` all read the same tallies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "daemon/base/ids.h"

namespace kvartal::policy {

enum class DropReason : uint8_t {
  kOwnSpace,      // the tenant's own new blocks wanted the space
  kTakenByOther,  // another tenant was entitled to the space
  kOverLimit,     // the limit was lowered below what the tenant held
  kEntryCap,      // the tenant's index entries were at their maximum
  kRetired,       // no live engine group uses its namespace digest, and space was wanted
  kIdle,          // idle for longer than the TTL of its tier
  kMaxAge,        // older than the tenant's maxAge
  kRemoved,       // the tenant was dropped or removed
  kUnreadable,    // the device failed, or the bytes were not the block's
  kKeyMissing,    // the key it is encrypted under is gone
  kInTheClear,    // it is not encrypted, and by now its tenant's policy asks for that
};
inline constexpr size_t kDropReasonCount = 11;

constexpr const char* DropReasonName(DropReason reason) {
  constexpr const char* kNames[kDropReasonCount] = {
      "own_space",  "taken_by_other",         "over_limit",  "entry_cap", "retired", "idle", "max_age", "removed",
      "unreadable", "encryption_key_missing", "in_the_clear"};
  return kNames[static_cast<size_t>(reason)];
}

// Space was wanted; time was up. The rest is neither.
constexpr bool IsEviction(DropReason reason) { return reason <= DropReason::kRetired; }
constexpr bool IsExpiry(DropReason reason) { return reason == DropReason::kIdle || reason == DropReason::kMaxAge; }

// Who decided what to take, for whom.
struct DropCause {
  // NOLINTNEXTLINE(google-explicit-constructor): a reason alone is a cause
  DropCause(DropReason why, TenantId for_whom = TenantId::None()) : reason(why), taker(for_whom) {}
  DropReason reason;
  TenantId taker;  // kTakenByOther: who got the space
};

// All decisions of one reason.
struct Tally {
  uint64_t count = 0;
  uint64_t bytes = 0;        // of slots; 0 where the decision has none
  int64_t last_wall_ms = 0;  // when it last happened
  TenantId last_taker;       // of the last kTakenByOther
};

}  // namespace kvartal::policy
