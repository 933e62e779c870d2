// A node without bytes: the real engine and the real tiers over devices that hold no payload, on a clock that moves
// when it is told. Devices take no time, so this answers what is kept, refused and evicted, never how fast.
// Confined to one thread. Deterministic: the same calls give the same decisions.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/base/clock.h"
#include "daemon/base/status.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/policy/policy_table.h"
#include "daemon/tier/dram_tier.h"
#include "daemon/tier/nvme_tier.h"
#include "tools/trace_engine/byteless_catalog.h"
#include "tools/trace_engine/byteless_file.h"
#include "tools/trace_engine/byteless_memory.h"
#include "tools/trace_engine/completion_queue.h"

namespace kvartal::trace_engine {

class VirtualNode {
 public:
  // Tiers of the sizes `policy` was made for; a size of 0 is no tier.
  static absl::StatusOr<std::unique_ptr<VirtualNode>> Start(std::shared_ptr<const policy::PolicyTable> policy,
                                                            const engine::EngineOptions& options);

  engine::CacheEngine& engine() { return *engine_; }
  const engine::CacheEngine& engine() const { return *engine_; }
  // In taken slots, over all tenants.
  uint64_t used_bytes(TierKind tier) const;

  // Lets everything end that devices have under way.
  void Settle() { completions_.RunAll(); }
  // To a time since the start, with every tick on the way. A time that has passed is now.
  void AdvanceToMs(int64_t ms);
  int64_t now_ms() const { return now_ms_; }

 private:
  VirtualNode() = default;
  absl::Status Make(std::shared_ptr<const policy::PolicyTable> policy, const engine::EngineOptions& options);

  ManualClock clock_;
  int64_t now_ms_ = 0;
  int64_t next_tick_ms_ = 0;
  CompletionQueue completions_;
  BytelessMemory memory_{&completions_};
  BytelessCatalog catalog_{&completions_};
  std::unique_ptr<BytelessFile> file_;
  std::unique_ptr<tier::DramTier> dram_;
  std::unique_ptr<tier::NvmeTier> nvme_;
  std::unique_ptr<engine::CacheEngine> engine_;
};

}  // namespace kvartal::trace_engine
