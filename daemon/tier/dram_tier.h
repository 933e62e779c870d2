// Host memory: one arena a domain, cut in extents of one slot size each, populated and punched by the memory thread.
// Confined to the engine loop.
// Invariants: extents of a domain never overlap; a range is handed out again only after its punch has ended; a slot's
// generation is raised when it is given back, before anyone else may write it, and before it is zeroed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/device/host_memory.h"
#include "daemon/tier/address_ranges.h"
#include "daemon/tier/dram_extent.h"
#include "daemon/tier/tier.h"

namespace kvartal::tier {

// Memory of an arena that now belongs to its domain; clients populate their own mapping of it off the request path.
struct GrantedRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class DramTier : public Tier {
 public:
  DramTier(device::HostMemory* memory, uint64_t capacity_bytes);
  ~DramTier() override;

  // Makes the arena of `domain`. Idempotent.
  absl::Status OpenDomain(DomainId domain);
  // Undoes OpenDomain: the address space goes back, and what a client faults into an arena it kept is its own affair
  // from then on. False, and nothing happened, while the domain has memory or requests of its own are under way.
  [[nodiscard]] bool CloseDomain(DomainId domain);
  // nullptr before OpenDomain and after CloseDomain.
  device::Arena* arena(DomainId domain) const;
  // Neighbouring extents as one range.
  std::vector<GrantedRange> granted(DomainId domain) const;
  // Told of every range that joins a domain, before the Grow that added it is done.
  using OnGranted = std::function<void(DomainId, GrantedRange)>;
  void SetOnGranted(OnGranted on_granted) { on_granted_ = std::move(on_granted); }

  TierKind kind() const override { return TierKind::kDram; }
  uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const override;
  void Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) override;
  SlotId Take(DomainId domain, uint32_t slot_bytes) override;
  void Give(DomainId domain, SlotId slot) override;
  // `done` runs before Shrink returns only when there is nothing to take.
  uint64_t Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) override;
  uint64_t EmptyBytes(DomainId domain) const override;
  TierStats stats() const override;

  // Overwrites a taken slot with zeros; it must not be given back before `done`. False when the memory thread has too
  // much to do.
  [[nodiscard]] bool Zero(DomainId domain, SlotId slot, absl::AnyInvocable<void()> done);

  // Where a slot's bytes are. REQUIRES: taken.
  static uint64_t OffsetOf(SlotId slot);
  std::byte* DataOf(DomainId domain, SlotId slot) const;
  uint32_t GenerationOf(DomainId domain, SlotId slot) const;

  // --- emptying one extent of a domain that has to give it up: it takes nothing new, and what may move moves out of it
  // What a taken slot holds, so that it can be asked about.
  void SetHolder(DomainId domain, SlotId slot, EntryId holder);
  using MayMove = absl::FunctionRef<bool(EntryId)>;
  // Chooses the extent of at most `at_most_bytes` that is easiest to empty: the least cost of what its slots hold (0
  // for what may move), then fewest taken. `near` (may be None): a slot whose extent is looked at first, and whose size
  // alone is of interest. False: none is that small.
  using LeaveCost = absl::FunctionRef<size_t(EntryId)>;
  bool StartLeaving(DomainId domain, uint64_t at_most_bytes, SlotId near, LeaveCost cost_of);
  // It takes new blocks again.
  void StopLeaving(DomainId domain);
  // Taken slots of the extent that is leaving; 0 when none is.
  uint32_t LeavingSlots(DomainId domain) const;
  bool IsLeaving(DomainId domain, SlotId slot) const;
  // What those slots hold, None where nobody set a holder.
  std::vector<EntryId> LeavingHolders(DomainId domain) const;
  // Moves blocks out of it, into free slots of the domain, bytes included. `moved` hears of each. Returns the
  // size of a slot for want of which some that may move are left; 0: none is.
  uint32_t MoveOut(DomainId domain, MayMove may_move, absl::FunctionRef<void(EntryId, SlotId to)> moved);

  // Looks for bytes that clients faulted into holes (allocated beyond what was granted) and punches them, a part of the
  // addresses at a time; punches that failed are tried again. Returns the stray bytes not told before, so that the sum
  // over all calls is what was seen. Called from a tick.
  uint64_t PunchStrayPages();

 private:
  struct Domain;
  struct Growth;
  // A range on its way back to the free ones. Those of one Shrink share `ended`, which runs when the last is let go.
  struct Reclaim {
    Domain* domain;
    AddressRange range;
    bool counted;  // its bytes were the domain's; false for holes searched for stray pages
    std::shared_ptr<absl::AnyInvocable<void()>> ended;
  };
  Domain& Find(DomainId id) const;
  void EndGrow(Growth* growth, absl::Status status);
  void AddExtent(Domain* domain, const AddressRange& range, uint32_t slot_bytes);
  void RemoveExtent(Domain* domain, DramExtent* extent);
  static std::vector<DramExtent*> LeavingCandidates(Domain* domain, SlotId near);
  void Queue(Reclaim reclaim);
  void StartReclaims();
  void EndReclaim(Reclaim* reclaim, const absl::Status& status);
  uint64_t PunchStrayPages(Domain* domain);

  device::HostMemory* const memory_;
  const uint64_t arena_bytes_;
  std::vector<std::unique_ptr<Domain>> domains_;  // by DomainId
  std::deque<Reclaim> reclaims_;                  // not yet taken by the memory thread
  std::vector<Reclaim> failed_reclaims_;          // out of circulation until a later try succeeds
  uint64_t growing_bytes_ = 0;                    // being populated: neither granted nor free
  TierStats stats_;
  OnGranted on_granted_;
  std::shared_ptr<DramTier*> self_;  // what callbacks hold weakly: they may come after the tier is gone
};

// Bytes of an extent for slots of `slot_bytes`: the smallest multiple of kExtentAlignBytes, at least `want_bytes` where
// that is allowed, that wastes less than kExtentWastePercentMax (for the few sizes that nothing up to kExtentMaxBytes
// fits so well: the one that wastes least). Pure. REQUIRES: `slot_bytes` is a multiple of kSlotAlignBytes, from that up
// to kBlockBytesMax.
uint64_t ExtentBytesFor(uint32_t slot_bytes, uint64_t want_bytes);

}  // namespace kvartal::tier
