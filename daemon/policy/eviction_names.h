// What `eviction` of a configuration may name. The orders are made in tenant_orders.cc, in this order.
#pragma once

#include <array>
#include <string_view>

namespace kvartal::policy {

inline constexpr std::array<std::string_view, 2> kEvictionNames = {"lru", "lhd"};

}  // namespace kvartal::policy
