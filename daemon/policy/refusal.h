// Why the daemon said no. Every refusal carries one of these to the client, to a counter and to the log.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartal::policy {

enum class Refusal : uint8_t {
  kNone = 0,
  kTenantLimit,           // the tenant's limit in that tier is reached and nothing of its own can be evicted
  kCapacity,              // the tier is full and nothing may be taken
  kEntryCap,              // the tenant's index entries are at their maximum
  kTooSmall,              // the limit is smaller than what one slot needs
  kNoTier,                // the tier is absent, or the policy gives the tenant nothing there
  kQueueFull,             // too much is under way; try again
  kTierSick,              // the device is degraded or offline
  kOutOfMemory,           // the system refused memory inside the configured capacity
  kDraining,              // the daemon is going down
  kRecovering,            // accounting after a restart is not yet exact; try again
  kGroupLimit,            // this engine group holds too many leases or unfinished blocks
  kBusy,                  // another group is filling the same block
  kGone,                  // a block that was to be pinned has left the cache
  kTooLong,               // a pin would outlast what may be kept: maxAge, or the longest pin there is
  kParentUnpinned,        // a pin of a block whose parent is not kept as long: nobody would find it
  kOwed,                  // a lease of memory that another tenant waits for
  kWriteBudget,           // the disk may not be written more now, and the block has not shown that it is worth it
  kLate,                  // it was not there by the time until which the caller would wait
  kEncryptionKeyMissing,  // blocks of the tenant have to be encrypted on NVMe, and the node has no key
};
inline constexpr size_t kRefusalCount = 20;

constexpr const char* RefusalName(Refusal reason) {
  constexpr const char* kNames[kRefusalCount] = {
      "none",          "tenant_limit", "capacity",   "entry_cap",
      "too_small",     "no_tier",      "queue_full", "tier_sick",
      "out_of_memory", "draining",     "recovering", "group_limit",
      "busy",          "gone",         "too_long",   "parent_unpinned",
      "owed",          "write_budget", "late",       "encryption_key_missing"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace kvartal::policy
