// What is erased by policy, counted until somebody keeps the receipt: a running sum a tenant and reason. Where there is
// a catalog the sum is in it before the records of the erased blocks are gone, and leaves it when the receipt is kept;
// so a process that ends in between is followed by one that tells the same, once more at worst. A receipt is told when
// the zeros are safe from a power cut.
// Confined to the engine loop.
// Invariants: a block counts once, with its last copy; a receipt is told again until it is kept; what the device took
// no zeros for is never certified, in this life or a later one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/engine/deletion_receipt.h"
#include "daemon/engine/engine_state.h"

namespace kvartal::engine {

class Receipts {
 public:
  explicit Receipts(EngineState* state) : state_(*state) {}

  // The removal of a tenant begins: a process that ends before its receipt is kept leaves it to the next.
  void Open(TenantState& tenant, int64_t before_wall_ms);
  // What the process before this one left. A removal is open; of blocks over age the receipt alone is missing.
  void Resume(TenantState& tenant, const tier::ErasureRecord& record);

  // Copies of a block are erased and about to go. Persist what was counted before the records of the blocks go.
  using Copies = std::array<bool, kTierCount>;
  void Count(TenantState& tenant, policy::DropReason reason, EntryId id, const Copies& erased, bool zeroed);
  void Persist(TenantState& tenant, policy::DropReason reason);
  // A block of that owner keeps its bytes.
  void NoteUnzeroed(const tier::OwnerUidHash& owner, const std::string& tenant);

  // The removal is at its end. Returns what its receipt says.
  DeletionReceipt Close(TenantState& tenant);
  // Tells what has not been told, and once more what was not kept.
  void Tick();

 private:
  OpenReceipt& Of(TenantState& tenant, policy::DropReason reason);
  void Tell(TenantState& tenant, policy::DropReason reason);
  void FlushAndAsk();
  void Ask(TenantState& tenant, policy::DropReason reason);
  void OnKept(TenantState& tenant, policy::DropReason reason, bool kept);

  EngineState& state_;
  std::vector<TenantState*> aged_;  // to be told after the next flush; `telling` keeps them
  bool flushing_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kvartal::engine
