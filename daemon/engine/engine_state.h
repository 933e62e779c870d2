// What every verb of the engine works on: index, ledger, devices and time; the life of tenants and namespaces
// (engine_state.cc, namespaces.cc) and who waits for what (waiting.cc). The rules that keep copies and orders right are
// in residency.h, those of charges in space.h.
// Confined to the engine loop.
// Invariants: a TenantId or NamespaceId is given again only when nothing is left of who had it, here and in every
// device; a tenant's domain has the tenant's number.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "daemon/base/limits.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/engine/deletion_receipt.h"
#include "daemon/index/prefix_index.h"
#include "daemon/policy/block_deadline.h"
#include "daemon/policy/fair_share.h"
#include "daemon/policy/ghost_list.h"
#include "daemon/policy/quota_ledger.h"
#include "daemon/policy/tenant_orders.h"
#include "daemon/policy/ttl_wheel.h"
#include "daemon/policy/write_budget.h"
#include "daemon/tier/dram_tier.h"
#include "daemon/tier/nvme_catalog.h"
#include "daemon/tier/nvme_format.h"
#include "daemon/tier/nvme_tier.h"
#include "daemon/tier/tenant_ciphers.h"

namespace kvartal::engine {

// Request numbers start above every tick: what is recovered after a restart is ordered by its ticks, before all
// requests.
inline constexpr uint64_t kFirstRequest = uint64_t{1} << 32;

// Who takes space from others, or waits for what he is guaranteed, does so until a whole tick has passed without; on
// NVMe, where a write that was put off is tried again after kTimerBusyTicks, until that has passed.
inline constexpr uint32_t TakingTicks(TierKind tier) { return tier == TierKind::kNvme ? kTimerBusyTicks + 2 : 2; }

inline constexpr uint32_t kNoTick = UINT32_MAX;

// Until what a catalog failed at is asked of it again: its store is opened anew no sooner.
inline constexpr uint32_t kCatalogRetryTicks = kCatalogReopenSeconds * 1000 / kTickMs;

// Work that could not go on for want of space, kept until something changes.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Goes on where it stopped. True when it is finished and may be forgotten.
  virtual bool Retry() = 0;
  // Whose work it is; None when it ends by itself.
  virtual GroupId group() const = 0;
  // The tick by which it is to be answered.
  virtual uint32_t due_tick() const = 0;
  // Of these at most one is called, out of the queue, right before it is destroyed.
  // The group has ended, and nobody waits for the answer.
  virtual void Cancel() {}
  // It is due, and is answered with what it has.
  virtual void Late() = 0;
};

// One tenant's part in the sharing of one tier (shares.h).
struct TierSharing {
  uint64_t share_bytes = 0, demand_bytes = 0;  // of the last water-filling
  bool ran_out = false;                        // since then: had to evict its own, or was refused
  policy::GhostList ghosts;
  TenantId victim;  // who gives it space now
  // When it last had nothing that could be taken on a claim: not asked again within that tick.
  std::array<uint32_t, policy::kClaimCount> stuck_tick{};
};

// A receipt of a tenant from the first erased block until it is kept (receipts.h).
struct OpenReceipt {
  uint64_t erasure = 0;  // what the catalog has of it; 0: nothing
  bool running = false;  // a removal that has not ended
  int64_t before_wall_ms = 0;
  DeletionReceipt sum;    // not told
  bool complete = false;  // it may be
  std::optional<DeletionReceipt> told;
  bool telling = false;  // whether it is kept is not known yet
  uint32_t tell_again_tick = 0;

  bool owes_nothing() const {
    return !running && !complete && !told.has_value() && sum.blocks + sum.bytes() + sum.unerased_blocks == 0;
  }
};

// Of an owner, ever.
struct UnzeroedBlocks {
  uint64_t erasure = 0;  // what the catalog has of it; 0: nothing
  uint64_t blocks = 0;
};

// Writes to NVMe that have not ended, by the disk they go to.
struct WritesByDisk {
  uint32_t all = 0;
  std::array<uint32_t, kDisksMax> on{};

  void Begin(size_t disk) { ++all, ++on[disk]; }
  void End(size_t disk) { --all, --on[disk]; }
};

struct TenantState {
  TenantId id;
  policy::TenantRules rules;
  tier::OwnerUidHash owner{};
  TenantStats stats;
  policy::TenantOrders orders;
  std::array<TierSharing, kTierCount> sharing;
  std::deque<std::unique_ptr<Waiter>> waiters;
  absl::flat_hash_map<uint32_t, uint32_t> growing;  // slot bytes -> DRAM extents being populated
  absl::btree_set<NamespaceId> namespaces;
  size_t open_namespaces = 0;  // of those, that somebody uses
  uint32_t reads_under_way = 0;
  WritesByDisk writes_under_way;
  WritesByDisk demotions_under_way;                 // of those: writes whose source is wanted as space
  uint32_t takings_under_way = 0;                   // writes of others, whose source it wants
  absl::btree_map<EntryId, uint32_t> pins;          // until tick
  std::array<uint64_t, kTierCount> pinned_bytes{};  // by the tier that keeps them, headers included
  // While those are more than the guarantee: whose pins end, from the back on. Some may have ended by themselves.
  std::array<std::vector<EntryId>, kTierCount> yielding_pins;
  uint64_t leased_bytes = 0;       // of blocks that somebody reads in place
  uint64_t kept_bytes = 0;         // of those and what is pinned in DRAM: each once
  bool stuck_on_nvme = false;      // above its limit there, and what could go is all in use
  bool stuck_on_entries = false;   // the same with its entry cap, which ends no pin
  uint32_t empty_ticks = 0;        // how long the domain has had empty extents
  uint32_t ahead_waited_tick = 0;  // when a read-ahead last found memory being made, and did not wait for it
  bool memory_open = false;
  uint32_t grow_failed_tick = 0;       // when a populate was last refused: not tried again within that tick
  uint32_t spared_tick = 0;            // when a search for room last passed over blocks of the request it was for,
  uint32_t spared = 0;                 // and how many were, in that tick
  uint32_t chain_erased_tick = 0;      // when a chain without copies was last too long to be erased at once
  uint32_t own_extent_stuck_tick = 0;  // when it last could not empty an extent for itself: not tried within that tick
  uint32_t erases_under_way = 0;       // of a removal: transfers it waits for
  uint32_t shut_out_tick = 0;          // by a drop: when it got on last; 0: nobody waits for its end
  uint64_t drop_left = 0;              // then: what it had to do
  uint32_t resting_slots = 0;          // of aborted fills
  int64_t not_before_ms = 0;           // blocks and salts are dated no earlier: what is older a drop has to have erased
  bool dropping = false;
  bool zeros_flushed = false;  // then: all is erased, and safe from a power cut
  absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> drop_done;
  absl::Status drop_status;  // the first thing that went wrong
  OpenReceipt over_age, removal;
  // Since when no policy names it; 0: one does. It may not grow, holds what it has for a grace, and is erased then.
  uint32_t removed_tick = 0;
  bool erased = false;            // since it was removed
  uint64_t reclaiming_bytes = 0;  // of its memory: being punched

  DomainId domain() const { return DomainId(id.value()); }
  policy::EvictionOrder& order(TierKind tier, size_t disk = 0) { return *orders.tiers[TierIndex(tier)][disk]; }
  policy::ReuseHistory* history() { return orders.history.get(); }  // nullptr when nobody learns from it
  const policy::ReuseHistory* history() const { return orders.history.get(); }
  TierSharing& shared(TierKind tier) { return sharing[TierIndex(tier)]; }
  const TierSharing& shared(TierKind tier) const { return sharing[TierIndex(tier)]; }
};

struct NamespaceState {
  TenantId tenant;
  NamespaceDigest digest;
  ModelLayout layout;
  uint32_t users = 0;    // sessions that have it open and Reserves under way; 0: retired, its blocks go first
  uint32_t entries = 0;  // in the index; a namespace without users and entries is forgotten, and its number another's
};

// A block some group is writing.
struct Filling {
  GroupId group;
  EntryId entry;
  uint64_t shards_missing = 0;  // bit i: shard i is not committed yet
  uint64_t shards_taken = 0;    // bit i: some session reserved shard i
  uint32_t since_tick = 0;
  uint32_t stored_tick = 0;  // since when nobody is at it, a shard being there

  uint64_t shards_written() const { return shards_taken & shards_missing; }  // it may be, right now
};

class EngineState;

// Somebody's use of a namespace, for as long as this lives.
class NamespaceUse {
 public:
  NamespaceUse(EngineState* state, NamespaceId id);
  ~NamespaceUse();
  NamespaceUse(const NamespaceUse&) = delete;
  NamespaceUse& operator=(const NamespaceUse&) = delete;

 private:
  EngineState& state_;
  const NamespaceId id_;
};

class EngineState {
 public:
  EngineState(const EngineOptions& options, const EngineDevices& devices,
              std::shared_ptr<const policy::PolicyTable> policy);

  // --- tenants and namespaces
  void ApplyPolicy(std::shared_ptr<const policy::PolicyTable> policy);
  // A removed tenant may hold what it holds and no more.
  void SetQuotas(const TenantState& tenant);
  // The date of a removal that begins now: after all that the tenant has stored, and after its salt. What comes later
  // is dated after it, in the same tick, too.
  int64_t RemovalDateMs(const TenantState& tenant) const;
  // On disk.
  int64_t FirstCommitMs(const index::Entry& entry) const;
  // What the owner encrypted under a salt made before that is beyond everybody's reach from now on.
  void ForgetCipher(const tier::OwnerUidHash& owner, int64_t before_wall_ms);
  TenantState& tenant(TenantId id) { return *tenant_by_id[id.value()]; }
  const TenantState& tenant(TenantId id) const { return *tenant_by_id[id.value()]; }
  NamespaceState& ns(NamespaceId id) { return namespaces[id.value()]; }
  const NamespaceState& ns(NamespaceId id) const { return namespaces[id.value()]; }
  const TenantState& TenantOf(const index::Entry& entry) const { return tenant(ns(entry.ns).tenant); }
  TenantState& TenantOf(const index::Entry& entry) { return tenant(ns(entry.ns).tenant); }
  // The snapshot still has the very policy object this tenant came from.
  bool InPolicy(const TenantState& tenant) const;
  // nullptr when nobody here has, or had, that owner hash.
  TenantState* FindOwner(const tier::OwnerUidHash& owner) const;
  // Somebody whose blocks are on the disk and whom no policy names: removed as of now. nullptr when there are too many.
  TenantState* AddRemoved(const tier::OwnerUidHash& owner);
  // The past of an owner: what is to be erased of it, apart from what the same owner has now or gets later. nullptr as
  // above.
  TenantState* AddPast(const tier::OwnerUidHash& owner, const std::string& name);
  // Whoever a policy names begins anew, with nothing; what `tenant` is, and has, goes on as a removed one called
  // `name`. False: there are too many tenants. REQUIRES: it is in the policy, and nobody uses it now.
  bool BeginAnew(TenantState& tenant, const std::string& name);
  // A removed tenant of whom nothing is left, waits or is owed any more: it may be forgotten.
  bool Forgettable(const TenantState& tenant) const;
  void Forget(TenantState& tenant);
  // Finds or makes it, whatever the number of them. Nobody uses a new one yet: ForgetIfUnused when nothing comes of it.
  absl::StatusOr<NamespaceId> AddNamespace(TenantId tenant, const NamespaceDigest& digest, const ModelLayout& layout);
  // For somebody who uses it from now on, and owes a LeaveNamespace.
  absl::StatusOr<NamespaceId> OpenNamespace(TenantId tenant, const NamespaceDigest& digest, const ModelLayout& layout);
  void UseNamespace(NamespaceId id);
  void LeaveNamespace(NamespaceId id);
  void ForgetIfUnused(NamespaceId id);
  // Into the index and out of it; the last entry of a namespace nobody uses takes that with it.
  EntryId InsertEntry(NamespaceId ns, const BlockKey& key, EntryId parent, uint32_t depth);
  void EraseEntry(EntryId id);
  absl::Status OpenMemory(TenantState& tenant);

  uint32_t SlotBytesOf(const index::Entry& entry) const { return ns(entry.ns).layout.SlotBytes(); }
  tier::BlockIdentity IdentityOf(EntryId id) const;
  // None when the block has no entry.
  EntryId FindBlock(const tier::BlockIdentity& identity) const;
  bool NvmeUsable(const TenantState& tenant) const;
  // How many of them end: a disk that hangs gives nothing back, and nobody waits for that.
  uint32_t ThatEnd(const WritesByDisk& writes) const;
  // Its copy there can be asked for. REQUIRES: it has one.
  bool NvmeReadable(EntryId id) const;
  // REQUIRES: it is being filled, and has a copy on NVMe.
  void NoteFillingBesideCopy(EntryId id);

  // --- time
  uint32_t NowTick() const;
  int64_t WallMsOfTick(uint32_t tick) const;
  uint32_t TickOfWallMs(int64_t wall_ms) const;
  // When somebody who waits for so long from now is to be answered; 0: whenever it may be.
  uint32_t DueTick(uint32_t deadline_ms) const {
    return deadline_ms == 0 ? kNoTick : NowTick() + std::max(deadline_ms / kTickMs, 1u);
  }
  uint64_t NextRequest() { return ++last_request; }
  // So many bytes wear a disk, be they a block's or zeros.
  void SpendWrite(uint64_t bytes) { write_budget.Spend(devices.clock->MonotonicNs(), bytes); }
  // What block_deadline.h decides by. A block that is read in place is in use: it was accessed just now.
  policy::BlockAges AgesOf(EntryId id, uint32_t now_tick) const { return AgesOf(id, index.at(id), now_tick); }
  bool OverAge(EntryId id, uint32_t now_tick) const;
  // For its age, or with its tenant: it is erased where it lies. A drop before that would leave its bytes there.
  bool IsToBeErased(EntryId id) const { return TenantOf(index.at(id)).dropping || OverAge(id, NowTick()); }
  bool Expired(EntryId id, TierKind tier, uint32_t now_tick) const;
  // The fastest tier an entry can be served from: committed, resident, unexpired. False: a gap.
  bool FindTier(EntryId id, uint32_t now_tick, TierKind* tier) const;
  // The period that the last access falls in, as an entry's recorded_period counts them.
  uint8_t AccessPeriodOf(const index::Entry& entry) const;
  // When a block is to be looked at: at its deadline, and once a period of use while a record on disk tells of that.
  // It is served to nobody, and can be written again, or never will be: time to drop it.
  bool NvmeCopyIsDue(const index::Entry& entry) const;
  uint32_t NextLook(EntryId id, uint32_t now_tick) const;
  // For its record. REQUIRES: pinned.
  uint32_t PinnedUntilWallS(EntryId id) const;
  // Sees to it that the block's timer fires by then. What moved away meanwhile is found out when it does.
  void Arm(EntryId id);

  // Once a tick: what is held now counts for the time since the last one.
  void AdvanceLedger();

  // --- decisions
  // Every refusal and every copy that goes is counted by its reason. `bytes`: what was asked or freed.
  void NoteRefusal(TenantState& tenant, TierKind tier, policy::Refusal reason, uint64_t bytes);
  void NoteDrop(TenantState& tenant, TierKind tier, policy::DropCause cause, uint64_t bytes);

  // --- sharing
  // Blocks of a lookup that are not in DRAM, or nowhere: those that were lost for want of space tell a tenant's demand.
  void NoteMisses(TenantState& tenant, NamespaceId ns, std::span<const BlockKey> keys, std::span<const EntryId> found);
  static uint64_t FingerprintOf(NamespaceId ns, const BlockKey& key);
  void RememberLost(TenantState& tenant, TierKind tier, const index::Entry& entry);
  // Somebody takes space from others now: what becomes free is his first.
  void NoteTaking(TierKind tier) { taking_ticks[TierIndex(tier)] = TakingTicks(tier); }
  bool SomebodyTakes(TierKind tier) const { return taking_ticks[TierIndex(tier)] > 0; }
  // Somebody is owed its guarantee, and it cannot be had at once. In DRAM nobody leases more than its own meanwhile.
  void NoteGuaranteeWaits(TierKind tier) { waiting_ticks[TierIndex(tier)] = TakingTicks(tier); }
  bool GuaranteeWaits(TierKind tier) const { return waiting_ticks[TierIndex(tier)] > 0; }
  // Once a tick: both may be over.
  void CountTakingTick();

  // --- waiting
  // Lets waiting work of `tenant` go on, first come first served. Safe to call from anywhere: from within such work,
  // another tenant has its turn when this one's is over, and this one has it already.
  void Wake(TenantState& tenant);
  void WakeAll();
  bool MayPark(const TenantState& tenant) const;
  bool Park(TenantState& tenant, std::unique_ptr<Waiter> waiter);  // false: as many wait as may
  // Out of the queues, in order: those that `is_it` knows.
  std::vector<std::unique_ptr<Waiter>> TakeOut(absl::FunctionRef<bool(const Waiter&)> is_it);
  void EndLateWaiters();

  RequestLatency& LatencyOf(const TenantState& tenant) { return latency[static_cast<size_t>(tenant.rules.sla)]; }
  EngineStats Stats() const;

  const EngineOptions options;
  const EngineDevices devices;
  std::shared_ptr<const policy::PolicyTable> policy;
  policy::QuotaLedger ledger;
  policy::WriteBudget write_budget;
  index::PrefixIndex index;
  policy::TtlWheel timers;
  std::vector<std::unique_ptr<TenantState>> tenants;  // those there are
  std::vector<TenantState*> tenant_by_id;             // nullptr: the number is free
  std::deque<TenantId> free_tenants;                  // numbers, the one that is free for longest first
  std::vector<NamespaceState> namespaces;             // by NamespaceId
  std::vector<NamespaceId> free_namespaces;
  absl::flat_hash_map<tier::OwnerUidHash, UnzeroedBlocks> unzeroed;
  absl::flat_hash_map<std::string, TenantId> tenant_by_name;
  absl::flat_hash_map<tier::OwnerUidHash, TenantId> tenant_by_owner;
  absl::flat_hash_map<std::pair<uint32_t, NamespaceDigest>, NamespaceId> namespace_by_digest;

  absl::flat_hash_map<ReservationId, Filling> fillings;
  absl::flat_hash_map<EntryId, ReservationId> filling_by_entry;
  absl::flat_hash_map<GroupId, absl::flat_hash_set<ReservationId>> fillings_by_group;
  // Committed, and its group waits to hear that it is durable.
  absl::flat_hash_map<EntryId, std::pair<GroupId, ReservationId>> durable_watch;
  // NVMe slots whose record is on its way to the catalog, with the generation that is being recorded.
  absl::flat_hash_map<SlotId, uint64_t> recording;

  std::array<uint32_t, kTierCount> short_tenants{};  // at the last water-filling: demanded more than they had
  // How many ticks of the engine each still counts: who waits is tried again at each, however late it comes.
  std::array<uint32_t, kTierCount> taking_ticks{};
  std::array<uint32_t, kTierCount> waiting_ticks{};  // a guarantee does

  // By their since_tick: those of blocks that had a copy on NVMe when they began, or got one meanwhile.
  absl::btree_set<std::pair<uint32_t, ReservationId>> fillings_beside_copy;

  EngineObserver* observer = nullptr;
  uint64_t last_request = kFirstRequest;
  uint64_t last_reservation = 0;
  uint64_t last_erasure = 0;
  uint64_t held_blocks = 0;  // leases and holds over all entries
  uint64_t reads_under_way = 0;
  uint64_t writes_under_way = 0;
  uint64_t waiting = 0;
  uint64_t stray_bytes_punched = 0;
  LatencyHistogram refusals_decided, refusals_answered;
  std::array<RequestLatency, policy::kSlaTierCount> latency;
  bool recovering = false;
  bool draining = false;
  bool timers_late = false;  // by a policy that changed: those that were set before may be

 private:
  TenantState& AddTenant(const std::string& name, const tier::OwnerUidHash& owner);
  void SetCipher(const TenantState& tenant);
  void RemoveTenant(TenantState& tenant);
  void AddNvmeStats(EngineStats* out) const;
  void RetryWaiters(TenantState& tenant);
  void SetRules(TenantState& tenant, const policy::TenantRules& rules);
  policy::BlockAges AgesOf(EntryId id, const index::Entry& entry, uint32_t now_tick) const;
  int64_t start_ns_;
  int64_t start_wall_ms_;
  int64_t advanced_ns_;
  std::deque<TenantState*> to_wake_;  // the front one's work goes on now
};

}  // namespace kvartal::engine
