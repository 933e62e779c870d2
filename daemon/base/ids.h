// Strong ids: small integers that cannot be mixed up. All are local to one daemon process; what is written to disk or
// sent to the operator uses digests and UIDs instead.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

namespace kvartal {

template <typename Tag, typename T>
class StrongId {
 public:
  using Value = T;
  constexpr StrongId() = default;
  constexpr explicit StrongId(T value) : value_(value) {}
  static constexpr StrongId None() { return StrongId(); }

  constexpr T value() const { return value_; }
  constexpr bool valid() const { return value_ != kNone; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  static constexpr T kNone = std::numeric_limits<T>::max();
  T value_ = kNone;
};

using TenantId = StrongId<struct TenantTag, uint32_t>;        // whom bytes are charged to
using DomainId = StrongId<struct DomainTag, uint32_t>;        // who may map a piece of memory
using NamespaceId = StrongId<struct NamespaceTag, uint32_t>;  // one interned namespace digest of one tenant
using EntryId = StrongId<struct EntryTag, uint32_t>;          // one block in the prefix index
using SlotId = StrongId<struct SlotTag, uint32_t>;            // one slot of a tier: its byte offset / kSlotAlignBytes
using GroupId = StrongId<struct GroupTag, uint64_t>;          // one engine group
using SessionId = StrongId<struct SessionTag, uint64_t>;      // one connection
using LeaseId = StrongId<struct LeaseTag, uint64_t>;          // one lease of a group
using ReservationId = StrongId<struct ReservationTag, uint64_t>;  // one block a group is filling; never used again

}  // namespace kvartal
