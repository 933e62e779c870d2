// Which blocks have which copies, and which of them are candidates for eviction. The only code that changes an
// entry's copies, touches it, or erases it.
// Confined to the engine loop.
// Invariant: a block is in its tenant's order of a tier exactly when it is committed, has a copy there that no child
// has, and no pin keeps that copy and nobody reads it in place.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "daemon/engine/engine_state.h"

namespace kvartal::engine {

inline constexpr uint32_t kAnySize = 0;  // of a slot

class Residency {
 public:
  explicit Residency(EngineState* state) : state_(*state) {}

  // A new entry in state kReserved; or `known` once more: a placeholder, or a block that has a copy on NVMe alone,
  // which it keeps.
  EntryId Reserve(NamespaceId ns, const BlockKey& key, EntryId known, EntryId parent, uint32_t depth, uint64_t request);
  void StartFilling(EntryId id, SlotId dram_slot);
  void Commit(EntryId id);
  // Recovery: a committed block whose only copy is on NVMe.
  void AdoptOnNvme(EntryId id, SlotId slot, uint32_t first_commit_tick, uint32_t last_access_tick);
  // Recovery: of a block that was stored anew, or is being, before this older copy of it was found; `recorded`: in the
  // catalog.
  void AdoptBeside(EntryId id, SlotId slot, uint32_t first_commit_tick, bool recorded);

  // The request `request` used it now; its conversation is in the phase that the request showed on the way to it.
  void Touch(EntryId id, uint64_t request, uint32_t now_tick);
  void Touch(EntryId id, uint64_t request, uint32_t now_tick, policy::SessionPhase phase);

  // Its client says that nobody will ask for it again; the next request that does takes that back.
  void SetEnded(EntryId id);
  // As if the request had used it, but for what is counted and learnt of uses.
  void Refresh(EntryId id, uint64_t request, uint32_t now_tick);

  // A copy that has just been written there.
  void AddCopy(EntryId id, TierKind tier, SlotId slot);
  // It lies there as its policy asks by now, under a key that the node has. REQUIRES: it does lie there.
  bool ServedFromNvme(const index::Entry& entry) const;
  // Drops a copy on NVMe that would be served to nobody, unless its key may come back. What is being read or written
  // waits, what is over age is erased.
  bool DropIfNotServed(EntryId id);
  // Frees the slot, charge and catalog record included, and counts the reason: kRetired rather than kOwnSpace for a
  // block of a retired namespace. A block without copies is gone: its entry is erased, or stays as a placeholder while
  // it has children. REQUIRES: no I/O of that copy under way.
  void DropCopy(EntryId id, TierKind tier, policy::DropCause cause);
  // All copies. REQUIRES: no I/O under way, no leases.
  void DropBlock(EntryId id, policy::DropCause cause);
  // Its fill was aborted or refused: it is gone, unless NVMe has kept a copy of it.
  // A fill, or a block that waits for a slot. Returns the slot, which is the caller's now; None: it had none.
  SlotId Abandon(EntryId id);
  // Erases the entry, and placeholders above it, when nothing is left of it. A no-op while something is. Of a long
  // chain a part, and the timer of the next goes on. Returns how many it erased.
  uint32_t EraseIfGone(EntryId id);

  // What orders, and the write budget, may know of it.
  policy::BlockTraits TraitsOf(const index::Entry& entry) const;

  // May its copy in `tier` be taken for space? Not when that is read in place, pinned or moving, not the last copy of a
  // block that is pinned or held, and not what is over age or of a tenant that is erased: eviction zeroes nothing.
  bool Evictable(EntryId id, TierKind tier) const;
  // The least valuable leaf of a tier, on those disks of it and with slots of that size, that `may_go` accepts among
  // the first kVictimProbesMax a disk; None: there is none.
  EntryId First(TenantState& tenant, TierKind tier, absl::FunctionRef<bool(EntryId)> may_go,
                tier::DiskSet disks = tier::kAllDisks, uint32_t slot_bytes = kAnySize) const;
  // The leaf that was idle longest.
  EntryId Oldest(TenantState& tenant, TierKind tier) const;
  // Is `first` the less valuable of two blocks, as the order of `tier` sees it?
  bool GoesBefore(EntryId first, EntryId second, TierKind tier) const;
  // A reader in place comes or goes. False, and nothing happened, when they are as many as can be counted, or leases
  // are capped.
  bool AddLease(EntryId id);
  // What the tenant may lease or pin in DRAM: its guarantee while somebody waits for its own, its limit while it is
  // above that, else kNoCap.
  static constexpr uint64_t kNoCap = UINT64_MAX;
  uint64_t LeaseCapBytes(const TenantState& tenant) const;
  // No lease of so many bytes more, which nothing keeps in DRAM yet, would be given.
  bool LeasesCapped(const TenantState& tenant, uint64_t more_bytes) const;
  void EndLease(EntryId id, uint32_t now_tick);
  // Its copy in `tier` is kept; what is elsewhere comes and goes. Pinned before, it is kept there from now on.
  void Pin(EntryId id, TierKind tier);
  void Unpin(EntryId id);
  uint64_t PinBytes(EntryId id, TierKind tier) const;

  // Its NVMe copy lies elsewhere now, as its record tells; `access_period`: of the access that the record tells of.
  void MoveOnNvme(EntryId id, SlotId to, uint8_t access_period);

  // A taken slot that no block has, or none any more: free again, and refunded.
  void GiveBackNvme(const TenantState& tenant, SlotId slot);

  // May its DRAM copy lie elsewhere in the domain? Not while it is read in place, filled or moving; pinned or not.
  bool Relocatable(EntryId id) const;
  // It does now.
  void Relocate(EntryId id, SlotId to);
  // May its copy in `tier` go? Not while it is read in place, kept there by a pin, moving, or being filled.
  bool Movable(EntryId id, TierKind tier) const;
  // May its bytes be zeroed? Not while it is read in place, pinned or moving. What is merely held is gone then.
  bool Erasable(EntryId id) const;
  // May the whole block go?
  bool Removable(EntryId id) const;

 private:
  bool IsCandidate(const index::Entry& entry, TierKind tier) const;
  // REQUIRES: it has a copy there.
  policy::EvictionOrder& OrderOf(const index::Entry& entry, TierKind tier) const;
  // Of a copy that lies, or lay, in `slot`.
  policy::EvictionOrder& OrderOf(const index::Entry& entry, TierKind tier, SlotId slot) const;
  // What a request that reaches `entry` through its parent has shown of its conversation.
  policy::SessionPhase PhaseOf(const index::Entry& entry, uint64_t request) const;
  // Counts a use and lets the tenant's orders learn from it. REQUIRES: `entry` is in no order.
  void NoteUse(index::Entry* entry, uint64_t request, uint32_t now_tick, policy::SessionPhase phase);
  void SetCopy(EntryId id, TierKind tier, SlotId slot);
  void ClearCopy(EntryId id, TierKind tier);
  void JoinOrders(EntryId id);
  void LeaveOrders(EntryId id);
  void ClearPin(EntryId id);
  void FreeSlot(const index::Entry& entry, TierKind tier, SlotId slot);

  EngineState& state_;
};

}  // namespace kvartal::engine
