// Finds room for one slot, in the order of the rule: free, expired, own blocks above the soft cap while someone is
// short, space of the tenant furthest above what it is entitled to, own blocks, refused with a reason. Every byte is
// charged before it exists. What is taken from others is in space_takeover.cc.
// Confined to the engine loop.
// Invariants: a block touched by the request that asks never leaves the cache to make room for it; nobody is pushed
// below its guarantee by another; nobody below its guarantee is refused while another holds what it borrowed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "daemon/engine/compaction.h"
#include "daemon/engine/engine_state.h"
#include "daemon/engine/residency.h"
#include "daemon/engine/shares.h"

namespace kvartal::engine {

enum class SpaceOutcome : uint8_t { kTaken, kWait, kRefused };
struct SpaceResult {
  SpaceOutcome outcome = SpaceOutcome::kRefused;
  SlotId slot;                                      // kTaken
  policy::Refusal reason = policy::Refusal::kNone;  // kRefused
};

enum class WriteStart : uint8_t {
  kStarted,
  kLater,      // room is being made: try again
  kNotNeeded,  // there already, or under way
  kNoRoom,     // the tenant may hold no more there, or the tier is sick
  kQueueFull,
};

class Space {
 public:
  // Starts writing a block to NVMe because its DRAM is wanted.
  using Demote = std::function<WriteStart(EntryId, policy::DropCause)>;

  Space(EngineState* state, Residency* residency, Shares* shares, Compaction* compaction)
      : state_(*state), residency_(*residency), shares_(*shares), compaction_(*compaction) {}
  void SetDemote(Demote demote) { demote_ = std::move(demote); }

  // A DRAM slot. kWait: memory is being populated or punched, or victims are being written out; the tenant is woken
  // when that changes. `wanted` is how many slots the caller still needs: so many demotions may be started at once.
  SpaceResult TakeDram(TenantState& tenant, uint32_t slot_bytes, uint64_t request, uint32_t wanted);
  // An NVMe slot, behind `after` if it can be. kWait: a segment is being emptied, or a guarantee waits for what others
  // hold; nobody is woken.
  SpaceResult TakeNvme(TenantState& tenant, uint32_t slot_bytes, uint64_t request, SlotId after);
  // Room for one more index entry. kNone or kEntryCap.
  policy::Refusal MakeEntryRoom(TenantState& tenant, uint64_t request);

  // Extents that nobody claims any more take new blocks again; nobody waits for a disk that has begun to hang.
  void Tick();
  // The tenant empties an extent for another, and holds more than its guarantee.
  bool IsGiving(const TenantState& tenant) const;
  // Its DRAM copy lies in an extent that has to be emptied, for another tenant or a lowered limit.
  bool IsOwed(EntryId id) const;
  bool AboveLimit(const TenantState& tenant, TierKind tier) const;
  // May somebody begin to use the block, or go on? Not what has to go, for its age, another tenant or a lowered limit.
  bool MayUse(const Hold& hold) const;
  // CacheEngine::MayRenew.
  bool MayKeep(std::span<const Hold> holds) const;

  // Gives empty DRAM extents of the tenant back to the node. The tenant is refunded at once; the bytes count against
  // the capacity until they are punched. Returns the bytes refunded.
  uint64_t GiveBackEmpty(TenantState& tenant);
  // Takes copies of the tenant's least valuable blocks, at most `max_blocks` a tier, until its charges fit its limits
  // again. Where all that could go is in use, no use of it begins or goes on.
  void DrainOverLimit(TenantState& tenant, uint32_t max_blocks);

 private:
  enum class Step : uint8_t { kRetry, kWait, kStuck };
  Step GrowDram(TenantState& tenant, uint32_t slot_bytes);
  void EndGrowth(TenantState& tenant, uint32_t slot_bytes, uint64_t growth, const absl::Status& status);
  Step DropExpired(TenantState& tenant, TierKind tier);
  Step EvictDram(TenantState& tenant, uint32_t slot_bytes, uint64_t request, uint32_t wanted);
  // What the tenant loses next in DRAM to make room for itself; `slot_bytes`: of that size, kAnySize: of any.
  // `may_go`: out of the cache, not only down a tier.
  EntryId OwnVictim(TenantState& tenant, uint32_t slot_bytes, uint64_t request, bool* may_go);
  bool DropOneEntry(TenantState& tenant, uint64_t request);
  void DropAhead(TenantState& tenant, uint32_t slot_bytes, uint64_t request, uint32_t wanted);
  policy::Refusal DramRefusal(const TenantState& tenant, uint32_t slot_bytes) const;
  Step GrowNvme(TenantState& tenant, uint32_t slot_bytes, SlotId after, SlotId* slot);
  Step EvictNvme(TenantState& tenant, uint32_t slot_bytes, uint64_t request);

  // --- from others
  Step TakeDramFromOthers(TenantState& taker, uint32_t slot_bytes);
  Step TakeNvmeFromOthers(TenantState& taker, uint32_t slot_bytes);
  // Makes `victim` give one DRAM extent to the node, in at most `*rounds` steps. kStuck: it cannot now.
  Step EmptyExtent(TenantState& victim, policy::DropCause cause, policy::Claim claim, uint64_t request,
                   uint32_t* rounds);
  // For slots of `slot_bytes` the tenant gives up an extent of those that `least_valuable` has.
  Step EmptyOwnExtent(TenantState& tenant, uint32_t slot_bytes, uint64_t request, EntryId least_valuable);
  bool ChooseExtent(TenantState& victim, policy::Claim claim, EntryId least_valuable);
  // Nobody reads or fills what lies in the extent that is leaving.
  bool EmptiesByItself(const TenantState& tenant) const;
  bool OnlyPinnedLeave(const TenantState& victim) const;
  // The next block that the victim loses: its least valuable leaf that has such a slot; when none may go, whatever lies
  // in the extent that is leaving and is not read now.
  EntryId NextToGiveUp(TenantState& victim, uint32_t slot_bytes, uint64_t request);
  Step GiveUp(TenantState& victim, EntryId id, policy::DropCause cause);
  // Somebody waits for room that is being made: until then others take none of it.
  void NoteWants(const TenantState& tenant, TierKind tier, uint64_t least_bytes);
  // A guarantee is not refused while others hold what they borrowed: it waits for their leases.
  bool WaitsForGuarantee(const TenantState& tenant, TierKind tier, uint64_t least_bytes);

  // What could be charged to the tenant now, limit and capacity both considered.
  uint64_t Room(const TenantState& tenant, TierKind tier) const;
  EntryId Victim(TenantState& tenant, TierKind tier, uint64_t request);
  EntryId Victim(TenantState& tenant, TierKind tier, uint64_t request, tier::DiskSet disks);
  // Residency::First of DRAM, and of slots of that size alone.
  EntryId FirstOfSize(TenantState& tenant, uint32_t slot_bytes, absl::FunctionRef<bool(EntryId)> may_go);
  // Its least valuable leaf there that may go for `request`.
  EntryId LeafOfSize(TenantState& tenant, uint32_t slot_bytes, uint64_t request);
  // The same of NVMe, where room is short on the disks and not in the books: only what gives up a place where one of
  // `slot_bytes` may come is of use.
  EntryId VictimOnTakingDisk(TenantState& tenant, uint32_t slot_bytes, uint64_t request);
  // The block is of the very request that room is made for.
  bool Spares(TenantState& tenant, EntryId id, uint64_t request);
  // Too many were, in this tick: nothing of the tenant's own goes for such a request until the next.
  bool SparesNoMore(TenantState& tenant, uint64_t request);
  void WakeWhoWaitsForHungDisks();
  // Over age: not taken for space, since its bytes have to be zeroed where they lie.
  bool IsDueForErasure(EntryId id) const;

  EngineState& state_;
  Residency& residency_;
  Shares& shares_;
  Compaction& compaction_;
  Demote demote_;
  // Charges of extents being populated. They live here, not with the memory thread: a populate may outlive the engine.
  absl::flat_hash_map<uint64_t, policy::Charge> growing_;
  uint64_t last_growth_ = 0;
  tier::DiskSet hanging_ = tier::kNoDisk;  // at the last tick
  bool starting_growth_ = false;           // inside Grow
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kvartal::engine
