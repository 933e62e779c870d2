// Deletes blocks provably, as maxAge and the removal of a tenant ask for: DRAM zeroed, header and payload on NVMe
// zeroed, the receipt counts them, and only then are record and slot free again.
// Confined to the engine loop; the zeroing runs on the memory and disk threads.
// Invariants: a block being erased counts as moving, so that nobody touches its copies; `done` runs exactly once for
// what was started.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "daemon/engine/engine_state.h"
#include "daemon/engine/receipts.h"
#include "daemon/engine/residency.h"

namespace kvartal::engine {

class Erasure {
 public:
  // Not OK: the device did not take the zeros. The entry may be gone.
  using Done = absl::AnyInvocable<void(const absl::Status&)>;
  enum class Outcome : uint8_t { kStarted, kInUse, kQueueFull };

  Erasure(EngineState* state, Residency* residency, Receipts* receipts)
      : state_(*state), residency_(*residency), receipts_(*receipts) {}

  // Erases the copies of a block. Some stay when a queue had no room for them: the caller looks again.
  Outcome Start(EntryId id, policy::DropReason reason, Done done);

 private:
  struct Job;
  bool ZeroDram(const std::shared_ptr<Job>& job);
  bool ZeroNvme(const std::shared_ptr<Job>& job);
  void EndPart(const std::shared_ptr<Job>& job, TierKind tier, const absl::Status& status);

  EngineState& state_;
  Residency& residency_;
  Receipts& receipts_;
  // Blocks that are being erased: by the disk, and those in memory alone.
  WritesByDisk on_disk_;
  uint32_t in_memory_ = 0;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kvartal::engine
