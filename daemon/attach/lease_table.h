// The leases of one engine group: the right to use some blocks in place, until Release, the end of the group, or
// expiry.
// Confined to the engine loop.
// Invariants: every block appended comes back exactly once; an id is never used again, not even by the next daemon
// (decision 0019); at most kLeasesPerGroupMax leases with kLeasedBlocksPerGroupMax positions together, those that are
// still to be given back included.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/base/ids.h"
#include "daemon/base/limits.h"
#include "daemon/engine/cache_engine.h"

namespace kvartal::attach {

// A chain, or the front of one, in the order of its lookups. Positions never move: a partial release only advances
// `front`.
struct Lease {
  LeaseId id;
  NamespaceId ns;
  std::vector<engine::Hold> blocks;  // by position, released ones included
  uint32_t front = 0;                // positions below are released

  std::span<const engine::Hold> left() const { return std::span(blocks).subspan(front); }

 private:
  friend class LeaseTable;
  static constexpr uint32_t kNowhere = UINT32_MAX;
  int64_t expires_ns = 0;
  int64_t judged_ns = INT64_MIN;  // when it was last looked through, and what came of it
  bool may_renew = false;
  uint32_t given_back = 0;    // positions below are
  bool ended = false;         // nobody's any more, and not yet all given back
  uint32_t newer = kNowhere;  // neighbours in the order of expiry
  uint32_t older = kNowhere;
};

class LeaseTable {
 public:
  using Sink = absl::FunctionRef<void(std::span<const engine::Hold>)>;
  static constexpr uint32_t kSlotBits = 13;  // of an id; the others are its serial

  // `last_serial` numbers the leases of all groups of the daemon, so a lease of another group is never taken for one of
  // this.
  // `of_tenant` counts the positions of all groups of the tenant; nullptr: nobody counts them.
  LeaseTable(uint64_t* last_serial, int64_t lease_ns, std::shared_ptr<uint64_t> of_tenant = nullptr);
  ~LeaseTable();
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // Room for another lease, and for `blocks` more positions.
  bool MayCreate() const { return leases_ < kLeasesPerGroupMax; }
  bool MayAppend(size_t blocks) const { return positions_ + blocks <= kLeasedBlocksPerGroupMax; }
  // Of all groups of the tenant, and how many they may be, with so many tenants on the node.
  uint64_t tenant_positions() const { return *of_tenant_; }
  static uint64_t OfTenantMax(size_t tenants) {
    return std::min(kLeasedBlocksPerTenantMax, kLeasedBlocksPerNodeMax / std::max<size_t>(tenants, 1));
  }

  // REQUIRES: MayCreate. Valid until the next Create.
  Lease* Create(NamespaceId ns, int64_t now_ns);
  // nullptr for one that has ended or was never this group's.
  Lease* Find(LeaseId id);
  // REQUIRES: MayAppend. Renews the lease, too, where that is allowed.
  void Append(Lease* lease, std::span<const engine::BlockPlace> places, int64_t now_ns, bool renew = true);
  // The first `count` blocks that are left; 0 or more than are left: all. A lease with none left ends. Nothing is given
  // back before GiveBack.
  void Release(Lease* lease, uint32_t count);
  void ReleaseAll();
  // Ends leases that were not renewed in time. Returns how many.
  uint32_t Expire(int64_t now_ns);
  // At most `blocks_max` of what was released. Returns how many.
  uint32_t GiveBack(uint32_t blocks_max, Sink sink);
  bool owes() const { return !owing_.empty(); }
  // Blocks from position `first` on are leased in place by `loaded` now: what the lease kept of them before, and what
  // it has released meanwhile, is given back.
  void PutInPlace(Lease* lease, uint32_t first, std::span<const engine::BlockPlace> loaded, Sink sink);
  void Renew(Lease* lease, int64_t now_ns);
  // Renewed so lately that to look through it again would cost more than the time is worth.
  bool IsFresh(const Lease& lease, int64_t now_ns) const {
    return lease.expires_ns - now_ns > lease_ns_ - lease_ns_ / kLeaseFreshParts;
  }
  // Whether it may be renewed. `judge` looks through all that is left of it; what that came to holds for a part of a
  // lease's time, however many sessions ask how often.
  using Judge = absl::FunctionRef<bool(const Lease&)>;
  bool MayRenew(Lease* lease, int64_t now_ns, Judge judge) const;
  // Those that may be; returns how many.
  uint32_t RenewAll(int64_t now_ns, Judge judge);

  uint32_t leases() const { return leases_; }
  uint32_t leased_blocks() const { return leased_blocks_; }

 private:
  static constexpr uint32_t kNowhere = Lease::kNowhere;
  static_assert(kLeasesPerGroupMax <= (1u << kSlotBits));

  uint32_t SlotOf(const Lease* lease) const { return static_cast<uint32_t>(lease - slots_.data()); }
  void LinkNewest(uint32_t slot);
  void Unlink(uint32_t slot);
  void Free(Lease* lease);

  uint64_t* const last_serial_;
  const int64_t lease_ns_;
  const std::shared_ptr<uint64_t> of_tenant_;
  std::vector<Lease> slots_;     // low bits of an id name its slot
  std::vector<uint32_t> free_;   // last in, first out: a steady client uses one warm slot
  std::vector<uint32_t> owing_;  // slots of leases with released positions that are to be given back, each once
  uint32_t oldest_ = kNowhere;   // all leases last equally long, so this list is in the order of expiry
  uint32_t newest_ = kNowhere;
  uint32_t leases_ = 0;
  uint32_t leased_blocks_ = 0;  // not given back
  uint64_t positions_ = 0;      // released ones included, until their lease ends
};

}  // namespace kvartal::attach
