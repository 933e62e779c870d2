#include "daemon/policy/eviction_order.h"

#include "absl/strings/str_cat.h"

namespace kvartal::policy {

absl::StatusOr<std::unique_ptr<EvictionOrder>> NewEvictionOrder(std::string_view name) {
  if (name == "lru") return NewLruOrder();
  return absl::InvalidArgumentError(absl::StrCat("unknown eviction order '", std::string(name), "'; allowed: lru"));
}

}  // namespace kvartal::policy
