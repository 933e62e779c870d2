#include "daemon/policy/tenant_orders.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/policy/eviction_names.h"
#include "daemon/policy/lhd_order.h"

namespace kvartal::policy {
namespace {

// `make` is told the tier.
template <typename Make>
void MakeAll(size_t nvme_disks, TenantOrders* orders, Make make) {
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    const size_t count = tier == TierIndex(TierKind::kNvme) ? nvme_disks : 1;
    while (orders->tiers[tier].size() < count) orders->tiers[tier].push_back(make(tier));
  }
}

TenantOrders NewLruOrders(size_t nvme_disks) {
  TenantOrders orders;
  MakeAll(nvme_disks, &orders, [](size_t) { return NewLruOrder(); });
  return orders;
}

TenantOrders NewLhdOrders(size_t nvme_disks) {
  TenantOrders orders;
  orders.history = std::make_unique<ReuseHistory>();
  orders.learn = true;
  MakeAll(nvme_disks, &orders, [history = orders.history.get()](size_t tier) {
    return NewLhdOrder(&history->classes, &history->residence[tier]);
  });
  return orders;
}

// As kEvictionNames has them.
constexpr std::array<TenantOrders (*)(size_t nvme_disks), kEvictionNames.size()> kMakers = {NewLruOrders, NewLhdOrders};
static_assert(std::find(kMakers.begin(), kMakers.end(), nullptr) == kMakers.end());

}  // namespace

absl::StatusOr<TenantOrders> NewTenantOrders(std::string_view name, size_t nvme_disks) {
  const auto known = std::find(kEvictionNames.begin(), kEvictionNames.end(), name);
  if (known != kEvictionNames.end()) return kMakers[static_cast<size_t>(known - kEvictionNames.begin())](nvme_disks);
  const std::vector<std::string> allowed(kEvictionNames.begin(), kEvictionNames.end());
  return absl::InvalidArgumentError(
      absl::StrCat("unknown eviction order '", std::string(name), "'; allowed: ", absl::StrJoin(allowed, ", ")));
}

void SetHistoryWanted(bool wanted, TenantOrders* orders) {
  if (orders->learn || wanted == (orders->history != nullptr)) return;
  orders->history = wanted ? std::make_unique<ReuseHistory>() : nullptr;
}

}  // namespace kvartal::policy
