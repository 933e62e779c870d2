// The orders of one tenant, one a tier, with what they learn from.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "daemon/base/status.h"
#include "daemon/block/tier_kind.h"
#include "daemon/policy/eviction_order.h"
#include "daemon/policy/reuse_history.h"

namespace kvartal::policy {

struct TenantOrders {
  std::unique_ptr<ReuseHistory> history;  // nullptr: these orders learn nothing. Outlives them
  std::array<std::unique_ptr<EvictionOrder>, kTierCount> tiers;
};

// By its configuration name ("lru", "lhd"). InvalidArgument names what is allowed.
absl::StatusOr<TenantOrders> NewTenantOrders(std::string_view name);

}  // namespace kvartal::policy
