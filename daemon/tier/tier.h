// The contract of a tier: where the bytes of blocks live. A tier knows slots and opaque domains; who may have how much
// is decided before it is asked.
// Confined to the engine loop.
//
// The unit of charge is the extent: what Grow adds. A DRAM extent holds many slots of one size; on NVMe a slot is its
// own extent. Slots inside a domain's extents are taken and given without any new charge.
//   charge GrowthBytes -> Grow -> done -> Take ... Give -> Shrink -> refund what it returned
// Invariants: a slot belongs to one domain from Grow to Shrink; a slot is taken at most once at a time; Take never
// grows.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "daemon/base/ids.h"
#include "daemon/base/status.h"
#include "daemon/block/tier_kind.h"

namespace kvartal::tier {

struct TierStats {
  uint64_t capacity_bytes = 0;
  uint64_t granted_bytes = 0;     // in extents that belong to a domain
  uint64_t used_bytes = 0;        // in taken slots, padding included
  uint64_t reclaiming_bytes = 0;  // taken back from a domain and not yet free
  uint64_t slots_used = 0;
  bool healthy = true;
};

class Tier {
 public:
  using GrowDone = absl::AnyInvocable<void(absl::Status)>;
  using ShrinkDone = absl::AnyInvocable<void()>;
  virtual ~Tier() = default;

  virtual TierKind kind() const = 0;

  // What Grow would add for slots of `slot_bytes` payload. `at_most_bytes` is what could be charged: the smallest
  // extent that holds a slot when a full one would not fit. 0 when not even that fits.
  virtual uint64_t GrowthBytes(uint32_t slot_bytes, uint64_t at_most_bytes) const = 0;
  // Adds an extent of exactly `growth_bytes` (a value GrowthBytes returned) to `domain`. `done` runs on the engine
  // loop, maybe before Grow returns. Not OK: nothing was added, the caller refunds.
  virtual void Grow(DomainId domain, uint32_t slot_bytes, uint64_t growth_bytes, GrowDone done) = 0;

  // A free slot of `domain` for `slot_bytes` of payload, None when only growth would help.
  virtual SlotId Take(DomainId domain, uint32_t slot_bytes) = 0;
  // The slot's bytes are dead from now on.
  virtual void Give(DomainId domain, SlotId slot) = 0;

  // Takes every empty extent from `domain`, except up to `keep_bytes` of them. Returns the bytes the domain no longer
  // has. They may still be reclaiming (memory being punched): `done` runs on the engine loop when they are free again.
  virtual uint64_t Shrink(DomainId domain, uint64_t keep_bytes, ShrinkDone done) = 0;
  // Of the granted bytes of `domain`: those in empty extents.
  virtual uint64_t EmptyBytes(DomainId domain) const = 0;

  virtual TierStats stats() const = 0;
};

}  // namespace kvartal::tier
