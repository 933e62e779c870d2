// Least hit density first, over leaves: of each class of blocks the oldest leaf is a candidate, and the one that earns
// the fewest hits for each byte and second it stays goes. Costs the number of classes, whatever the number of blocks.
#pragma once

#include <memory>

#include "daemon/policy/eviction_order.h"
#include "daemon/policy/reuse_history.h"

namespace kvartal::policy {

// One tier's, or a part's of it. `classes` is the tenant's, told of every use of its blocks in any tier; `residence` is
// of all orders of the tier, so that their blocks are worth the same. Both outlive the order.
std::unique_ptr<EvictionOrder> NewLhdOrder(const ReuseClasses* classes, Residence* residence);

}  // namespace kvartal::policy
