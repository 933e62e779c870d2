// The orders of one tenant, one a tier and of NVMe one a disk, with what they learn from.
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
  std::unique_ptr<ReuseHistory> history;  // nullptr: these orders learn nothing. Outlives them
  // By disk: what lies on one that can take nothing new makes no room, and is not looked through.
  std::array<std::vector<std::unique_ptr<EvictionOrder>>, kTierCount> tiers;
};

// `name`: of kEvictionNames. InvalidArgument says which those are.
absl::StatusOr<TenantOrders> NewTenantOrders(std::string_view name, size_t nvme_disks = 1);

}  // namespace kvartal::policy
