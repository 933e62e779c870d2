#include "tools/trace_engine/virtual_node.h"

#include <algorithm>
#include <utility>

#include "daemon/base/limits.h"
#include "daemon/policy/tenant_orders.h"

namespace kvartal::trace_engine {

absl::StatusOr<std::unique_ptr<VirtualNode>> VirtualNode::Start(std::shared_ptr<const policy::PolicyTable> policy,
                                                                const engine::EngineOptions& options) {
  std::unique_ptr<VirtualNode> node(new VirtualNode());
  KV_RETURN_IF_ERROR(node->Make(std::move(policy), options));
  return node;
}

absl::Status VirtualNode::Make(std::shared_ptr<const policy::PolicyTable> policy,
                               const engine::EngineOptions& options) {
  KV_RETURN_IF_ERROR(policy::NewTenantOrders(options.eviction).status());
  const policy::NodeCapacity& capacity = policy->capacity();
  dram_ = std::make_unique<tier::DramTier>(&memory_, capacity.bytes[TierIndex(TierKind::kDram)]);
  engine::EngineDevices devices{.clock = &clock_, .dram = dram_.get()};
  if (const uint64_t nvme_bytes = capacity.bytes[TierIndex(TierKind::kNvme)]; nvme_bytes > 0) {
    file_ = std::make_unique<BytelessFile>(nvme_bytes, &completions_);
    KV_ASSIGN_OR_RETURN(nvme_, tier::NvmeTier::Open(file_.get(), &clock_));
    devices.nvme = nvme_.get();
    devices.catalog = &catalog_;
  }
  engine_ = std::make_unique<engine::CacheEngine>(options, devices, std::move(policy));
  next_tick_ms_ = kTickMs;
  return absl::OkStatus();
}

uint64_t VirtualNode::used_bytes(TierKind tier) const {
  if (tier == TierKind::kDram) return dram_->stats().used_bytes;
  return tier == TierKind::kNvme && nvme_ != nullptr ? nvme_->stats().used_bytes : 0;
}

void VirtualNode::AdvanceToMs(int64_t ms) {
  while (now_ms_ < ms) {
    const int64_t next_ms = std::min(ms, next_tick_ms_);
    clock_.AdvanceMs(next_ms - now_ms_);
    now_ms_ = next_ms;
    if (now_ms_ < next_tick_ms_) return;
    next_tick_ms_ += kTickMs;
    engine_->Tick();
    Settle();
  }
}

}  // namespace kvartal::trace_engine
