// Host memory: one arena a domain, cut in extents of one slot size each, populated and punched by the memory thread.
// Confined to the engine loop.
// Invariants: extents of a domain never overlap; a range is handed out again only after its punch has ended; a slot's
// generation is raised when it is given back, before anyone else may write it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "daemon/device/host_memory.h"
#include "daemon/tier/tier.h"

namespace kvartal::tier {

// A range of an arena that now belongs to its domain; clients populate their own mapping of it off the request path.
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
  // nullptr before OpenDomain.
  device::Arena* arena(DomainId domain) const;
  std::vector<GrantedRange> granted(DomainId domain) const;
  // Told of every range that joins a domain, before the Grow that added it is done.
  using OnGranted = std::function<void(DomainId, GrantedRange)>;
  void SetOnGranted(OnGranted on_granted) { on_granted_ = std::move(on_granted); }

  TierKind kind() const override { return TierKind::kDram; }
  uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const override;
  void Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) override;
  SlotId Take(DomainId domain, uint32_t slot_bytes) override;
  void Give(DomainId domain, SlotId slot) override;
  uint64_t Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) override;
  uint64_t EmptyBytes(DomainId domain) const override;
  TierStats stats() const override;

  // Where a slot's bytes are. REQUIRES: taken.
  static uint64_t OffsetOf(SlotId slot);
  std::byte* DataOf(DomainId domain, SlotId slot) const;
  uint32_t GenerationOf(DomainId domain, SlotId slot) const;

  // Bytes clients faulted into holes (allocated beyond what was granted): seen, punched, counted. Called from a tick.
  uint64_t PunchStrayPages();

 private:
  struct Domain;
  device::HostMemory* const memory_;
  const uint64_t capacity_bytes_;
  std::vector<std::unique_ptr<Domain>> domains_;  // by DomainId
  TierStats stats_;
  OnGranted on_granted_;
};

// Bytes of an extent for slots of `slot_bytes`: the smallest multiple of kExtentAlignBytes, at least `want_bytes` where that is
// allowed, that wastes less than kExtentWastePercentMax. Pure.
uint64_t ExtentBytesFor(uint32_t slot_bytes, uint64_t want_bytes);

}  // namespace kvartal::tier
