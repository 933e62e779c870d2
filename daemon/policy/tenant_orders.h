// The orders of one tenant, one a tier and of NVMe one a disk, with what they, and others, learn from.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/block/tier_kind.h"
#include "daemon/policy/eviction_order.h"
#include "daemon/policy/reuse_history.h"

namespace kvartal::policy {

struct TenantOrders {
  std::unique_ptr<ReuseHistory> history;  // nullptr: nobody learns from it
  bool learn = false;                     // these orders do: it outlives them
  // By disk: what lies on one that can take nothing new makes no room, and is not looked through.
  std::array<std::vector<std::unique_ptr<EvictionOrder>>, kTierCount> tiers;
};

// `name`: of kEvictionNames. InvalidArgument says which those are.
absl::StatusOr<TenantOrders> NewTenantOrders(std::string_view name, size_t nvme_disks = 1);

// Whether anybody but the orders themselves wants the history of the tenant.
void SetHistoryWanted(bool wanted, TenantOrders* orders);

}  // namespace kvartal::policy
