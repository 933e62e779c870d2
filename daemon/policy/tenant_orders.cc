#include "daemon/policy/tenant_orders.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/policy/lhd_order.h"

namespace kvartal::policy {

absl::StatusOr<TenantOrders> NewTenantOrders(std::string_view name, size_t nvme_disks) {
  TenantOrders orders;
  const auto make_all = [&](auto make) {
    for (size_t tier = 0; tier < kTierCount; ++tier) {
      const size_t count = tier == TierIndex(TierKind::kNvme) ? nvme_disks : 1;
      while (orders.tiers[tier].size() < count) orders.tiers[tier].push_back(make(tier));
    }
  };
  if (name == "lru") {
    make_all([](size_t) { return NewLruOrder(); });
    return orders;
  }
  if (name == "lhd") {
    orders.history = std::make_unique<ReuseHistory>();
    make_all([&](size_t tier) { return NewLhdOrder(&orders.history->classes, &orders.history->residence[tier]); });
    return orders;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown eviction order '", std::string(name), "'; allowed: lru, lhd"));
}

}  // namespace kvartal::policy
