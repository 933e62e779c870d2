#include "daemon/policy/tenant_orders.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/policy/lhd_order.h"

namespace kvartal::policy {

absl::StatusOr<TenantOrders> NewTenantOrders(std::string_view name) {
  TenantOrders orders;
  if (name == "lru") {
    for (auto& order : orders.tiers) order = NewLruOrder();
    return orders;
  }
  if (name == "lhd") {
    orders.history = std::make_unique<ReuseHistory>();
    for (auto& order : orders.tiers) order = NewLhdOrder(&orders.history->classes);
    return orders;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown eviction order '", std::string(name), "'; allowed: lru, lhd"));
}

}  // namespace kvartal::policy
