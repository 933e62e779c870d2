// Memory of one GPU: slabs, each of one domain and one slot size, which pods of that domain map.
// Confined to the engine loop. Not yet wired into the engine: only tests make one.
// Invariants: granted, reclaiming and growing bytes together never exceed the capacity; no peer has a slab before it is
// all zeros; a slab leaves its domain when no peer has it, and goes to nobody but the driver, zeroed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/base/units.h"
#include "daemon/device/slab_memory.h"
#include "daemon/tier/address_ranges.h"
#include "daemon/tier/slab_state.h"
#include "daemon/tier/tier.h"

namespace kvartal::tier {

using PeerId = StrongId<struct PeerTag, uint64_t>;  // a process that maps slabs (a pod's, a mover); never used again
using SlabId = StrongId<struct SlabTag, uint64_t>;  // never used again

inline constexpr uint64_t kSlabMaxBytes = 1 * kGiB;     // one charge, one handle; 288 GiB are few of them
inline constexpr uint64_t kHbmBytesMax = 1 * kTiB;      // of a GPU: a sixteenth of a SlotId's reach, so that slabs of
                                                        // mixed sizes always find a range
inline constexpr int64_t kRecallNs = 5 * kNsPerSecond;  // an engine step and its unmapping; then it counts as deaf
inline constexpr int64_t kScrubRetryNs = kNsPerSecond;  // after one that failed: a mover starts anew in less

struct SlabInfo {
  SlabId id;
  DomainId domain;
  AddressRange range;  // in the address space that the domain has on this GPU
  uint32_t slot_bytes = 0;
  SlabState state = SlabState::kActive;
};

// Who hears of slabs: the side that talks to peers. May call the tier from inside.
class SlabObserver {
 public:
  virtual ~SlabObserver() = default;
  // It has joined its domain; the Grow that added it is done right afterwards.
  virtual void OnGranted(const SlabInfo& slab) = 0;
  // Its peers are to let go of it.
  virtual void OnRecall(const SlabInfo& slab) = 0;
  // The domain's next Shrink returns what was asked back.
  virtual void OnLetGo(DomainId domain) = 0;
};

class HbmTier : public Tier {
 public:
  HbmTier(device::SlabMemory* memory, int gpu, uint64_t capacity_bytes, const Clock* clock, SlabObserver* observer);
  ~HbmTier() override;

  // `gpus`: where the domain may have memory. May be called again with others: where it no longer may, nothing is added
  // or granted, and what it has goes by Shrink.
  void OpenDomain(DomainId domain, absl::Span<const int> gpus);
  // False, and nothing happened, while the domain has memory or a Grow is under way.
  [[nodiscard]] bool CloseDomain(DomainId domain);

  TierKind kind() const override { return TierKind::kHbm; }
  // Of a domain that has nothing here: what the other GrowthBytes knows better.
  uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const override;
  uint64_t GrowthBytes(DomainId domain, uint32_t slot_bytes, uint64_t at_most_bytes) const;
  // PermissionDenied: the domain may have nothing on this GPU.
  void Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) override;
  SlotId Take(DomainId domain, uint32_t slot_bytes) override;
  void Give(DomainId domain, SlotId slot) override;
  // Asks back every empty slab but `keep_bytes` of them. Returns the bytes of those that no peer has (any more): they
  // are refunded now, and free when `done` runs. The others stay the domain's, and charged, until OnLetGo.
  // `done` runs before Shrink returns only when there is nothing to take.
  uint64_t Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) override;
  // Of the granted bytes: those that Shrink would ask back or return.
  uint64_t EmptyBytes(DomainId domain) const override;
  // Granted: charged to domains, what is asked back included, until a Shrink returns it.
  TierStats stats() const override { return stats_; }
  // Bytes of all slabs in that state. Those of kDetaching and kZombie are granted, and of no use.
  uint64_t BytesIn(SlabState state) const;

  // A descriptor of the slab to be sent to `peer`, which has it from now on. NotFound: not a slab of this domain.
  // FailedPrecondition: it is asked back.
  absl::StatusOr<UniqueFd> Grant(DomainId domain, SlabId slab, PeerId peer);
  // The peer says that it has unmapped and closed it. False: it did not have it.
  bool PeerDetached(PeerId peer, SlabId slab);
  // Its process has ended (pidfd), which is proof. The end of its session is not: it is deaf from then on.
  void PeerGone(PeerId peer);
  // Deadlines, and scrubs that failed before.
  void Tick();

  std::vector<SlabInfo> slabs(DomainId domain) const;
  // Where a slot's bytes are. REQUIRES: taken.
  struct Place {
    SlabId slab;
    uint64_t offset;
  };
  Place PlaceOf(DomainId domain, SlotId slot) const;

 private:
  struct Domain;
  struct Growth;
  struct SlabRecord;
  Domain& Find(DomainId id) const;
  absl::Status MayGrow(const Domain& domain, uint64_t growth_bytes) const;
  void EndCreate(const std::shared_ptr<Growth>& growth, absl::StatusOr<std::unique_ptr<device::Slab>> made);
  void EndGrow(Growth* growth, absl::Status status);
  const SlabRecord& AddSlab(Growth* growth);
  void StartScrub(SlabRecord* slab);
  void EndScrub(SlabId id, const absl::Status& status);
  void Release(SlabRecord* slab);

  device::SlabMemory* const memory_;
  const int gpu_;
  const Clock* const clock_;
  SlabObserver* const observer_;
  std::map<DomainId, std::unique_ptr<Domain>> domains_;
  std::map<SlabId, std::unique_ptr<SlabRecord>> slabs_;  // few: they double in size
  uint64_t next_slab_ = 0;
  uint64_t growing_bytes_ = 0;  // being made and scrubbed: neither granted nor free
  TierStats stats_;
  std::shared_ptr<HbmTier*> self_;  // what callbacks hold weakly: they may come after the tier is gone
};

// Bytes of the next slab of a domain that holds `held_bytes` on the GPU: as much again, from kSlabAlignBytes up to
// kSlabMaxBytes, and a size near it where slots would waste kExtentWastePercentMax of that. Less where `at_most_bytes`
// is less; 0 where not even a slot fits. Pure. REQUIRES: `slot_bytes` is a multiple of kSlotAlignBytes.
uint64_t SlabBytesFor(uint32_t slot_bytes, uint64_t held_bytes, uint64_t at_most_bytes);

}  // namespace kvartal::tier
