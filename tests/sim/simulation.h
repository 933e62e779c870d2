// One run: draws events from the seed, does them to the real engine and to the model, and compares after each.
// Confined to one thread. The same plan gives the same run, byte for byte of its log.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/sim/coverage.h"
#include "tests/sim/event_log.h"
#include "tests/sim/model.h"
#include "tests/sim/node.h"
#include "tests/sim/plan.h"
#include "tests/sim/random.h"

namespace kvartal::sim {

inline constexpr uint32_t kNoParent = UINT32_MAX;  // of a chain that is reserved without one
inline constexpr int64_t kSkewMsMax = 60'000;      // of the wall clock
inline constexpr int64_t kLeaseMs = 2'000;         // of clients

// nullptr: the engine knows nobody by that number.
inline const engine::TenantStats* StatsOf(const engine::EngineStats& stats, TenantId id) {
  for (const engine::TenantStats& tenant : stats.tenants) {
    if (tenant.id == id) return &tenant;
  }
  return nullptr;
}

// Blocks of a namespace, one after another.
struct Chain {
  uint32_t first = 0;
  uint32_t count = 0;
};

class Simulation : private engine::EngineObserver {
 public:
  Simulation(const Plan& plan, bool print_log);
  ~Simulation() override;

  // False at the first thing that is not as it must be. `progress` (may be null) follows the number of events.
  bool Run(uint64_t events, volatile uint64_t* progress = nullptr);

  const std::string& finding() const { return findings_.first; }
  uint64_t event() const { return event_; }
  uint64_t log_hash() const { return log_.hash(); }
  std::string LastLines() const { return log_.LastLines(); }
  const Coverage& coverage() const { return coverage_; }

 private:
  struct Held {
    BlockRef block;
    engine::Hold hold;
    uint64_t offset = 0;
    uint32_t generation = 0;
    uint32_t nonce = 0;
  };
  // What one lookup or load gave, of one namespace.
  struct Lease {
    uint32_t life = 0;
    uint32_t space = 0;
    std::vector<Held> blocks;
    int64_t renewed_ms = 0;
  };
  struct Unfinished {
    uint32_t life = 0;
    GroupId group;
    ReservationId reservation;
    uint32_t shard = 0;
  };
  struct Lost {
    BlockRef block;
    uint32_t count = 0;  // from there to the end of what was loaded
  };
  struct Waiting {
    uint32_t life = 0;
    uint32_t space = 0;
    Chain chain;
    GroupId group;
    int64_t asked_ms = 0;
  };

  // --- what clients do (clients.cc, readers.cc)
  void DoReserve();
  void Reserve(uint32_t life, uint32_t space, const Chain& chain, GroupId group, uint32_t shard, uint32_t parent,
               uint32_t deadline_ms = 0);
  std::map<uint64_t, Waiting>::iterator EndReserve(std::map<uint64_t, Waiting>::iterator reserve);
  void OnReserved(uint32_t life, uint32_t space, const Chain& chain, GroupId group, uint32_t shard, bool at_once,
                  int64_t asked_ms, const std::vector<engine::ReservedBlock>& blocks);
  void OnGranted(const BlockRef& ref, GroupId group, uint32_t shard, int64_t asked_ms,
                 const engine::ReservedBlock& block);
  void OnRefused(uint32_t life, policy::Refusal reason);
  void DoFinish();
  void FinishOne(const Unfinished& item);
  // Reserves, and finishes all that the tenant has open.
  void Store(uint32_t life, uint32_t space, const Chain& chain);
  void Abort(GroupId group, ReservationId reservation, uint64_t done);
  void EndRest();
  void Commit(GroupId group, ReservationId reservation, uint32_t shard);
  void DoLookup();
  void Lookup(uint32_t life, uint32_t space, const Chain& chain);
  // Somebody holds it, and its memory is owed to another tenant.
  bool IsOwed(const BlockRef& ref);
  Held TakeHold(const BlockRef& ref, const engine::BlockPlace& place, bool in_place, bool every_byte);
  void DoLoad();
  void Load(const Lease& lease, size_t count);
  void OnLoaded(uint32_t life, uint32_t space, const std::vector<Held>& asked,
                const engine::CacheEngine::LoadResult& result);
  // What a read lost is stored anew, and loaded again by who holds it from before.
  void StoreLost();
  void DoRelease();
  void ReleaseLease(size_t at, size_t count);
  // As its client's library does, for ever: a lease ends by itself only where the engine renews it no more.
  void RenewLeases();
  void DoPin();
  void DoHint();
  void Pin(const Lease& lease, size_t count, int64_t for_ms);
  void DoGroupEnd();
  void EndGroup(uint32_t life, size_t at);
  void DoNamespace();
  void CloseNamespace(uint32_t life, uint32_t space);
  // --- and should not do (hostile.cc)
  void DoHostile();
  void CommitWrongly();
  void Scribble();
  void AskTooMuch();
  // --- what happens to the node (world.cc, crashes.cc, nvme_claims.cc, hung_disk.cc)
  void DoAdvance();
  void Tick();
  void DoPolicy();
  void ChangeRules(uint32_t life, const policy::TenantRules& rules);
  void DoTenantLife();
  void DoDrop();
  void OnDropped(uint32_t life, uint32_t nonces_below, const absl::StatusOr<uint64_t>& bytes);
  void DoTrouble();
  void TroubleDisk(Disk* disk);
  void TroubleCatalog(Disk* disk);
  void EndTrouble();
  void TurnKeys();
  void DoCrash();
  void PinBeforeCrash();
  void CrashBehindDrop(uint32_t index);
  void NoteCrash(Node::CrashKind kind);
  void CrashNode(Node::CrashKind kind);
  void NoteDisks(const Node::DisksChanged& changed);
  void NoteBoot();
  void ComeToRest();
  void CheckPins(const std::vector<BlockRef>& pins);
  void Boot();
  void CheckSurvivors(const std::map<SlotId, uint32_t>& durable);
  void CheckSurvivor(uint32_t nonce);
  bool MayBeCrowdedOut(const Life& life);
  void NoteRecovered();
  void DoSettle();
  // In words; empty when everything is at rest.
  uint64_t Entries();
  std::string UnderWay();
  void CheckMemoryAtRest();
  void ClaimNvmeGuarantee();
  void DrainUnderHolds(TierKind tier);
  void HangOneDisk();
  bool Rest(uint32_t life);
  Disk* HangUnder(uint32_t life, uint32_t space);
  void GoOnBeside(uint32_t life, uint32_t space, const Disk& hung);
  bool StoreBeside(uint32_t life, uint32_t space, uint32_t number, const Disk& hung);
  void LoadBeside(uint32_t life, uint32_t space);
  bool IsAnswered(absl::FunctionRef<bool()> answered);
  std::vector<uint32_t> FindIn(uint32_t life, uint32_t space, TierKind tier);
  void NoteInformed();
  void CheckRemoved(const engine::EngineStats& stats);
  void EndSessions(uint32_t life);

  // --- after every event (checks.cc)
  void CheckAfterEvent();
  void CheckLedger();
  void ForgetGone(const engine::EngineStats& stats);
  void CheckMemory(const engine::EngineStats& stats);
  void CheckTenant(Life* life, const engine::TenantStats& stats);
  // Above a lowered limit nothing lasts longer than what is in use may.
  void CheckDrain(Life* life, const engine::TenantStats& stats);
  void CheckDropGoesOn(Life* life, const engine::TenantStats& stats);
  uint64_t NvmeBytesMissed() const;
  void CheckNvmeGuarantee(Life* life, const engine::TenantStats& stats);
  void CheckLeaseCap(const Life& life, const engine::TenantStats& stats);
  // `waited`: a guarantee did for that tier, ever since the last look.
  void CheckTaking(const engine::EngineStats& stats, std::array<bool, kTierCount> waited);
  bool ShortSince(const engine::EngineStats& stats);
  uint64_t OldestReserve(uint32_t life) const;
  void CheckZeroed(const engine::EngineStats& stats);
  // Its record is about to go.
  void OnCatalogDelete(SlotId slot);
  size_t TimesFound(const BlockRef& ref) const;
  bool IsAnothersByNow(SlotId slot, uint32_t nonce);
  // Of the block that lies there in the clear; 0: none does.
  uint32_t NonceOnNvme(SlotId slot);
  void CheckSecrets();
  void CheckZeroed(const BlockRef& ref, SlotId slot, const std::string& why);
  void CheckUnreadable(const engine::EngineStats& stats);
  void CheckWriteBudget(const engine::EngineStats& stats);
  // Copies on NVMe that were given up in this boot, by reason.
  using NvmeDrops = std::array<uint64_t, policy::kDropReasonCount>;
  static NvmeDrops NvmeDropsOf(const engine::EngineStats& stats);
  std::vector<policy::DropReason> WhyForgotten();
  void CheckLeases();
  void CheckHeld(const Held& held, uint32_t space, bool every_byte);
  void CheckEverything();

  void OnBegunAnew(const std::string& tenant) override;
  void OnDurable(GroupId group, ReservationId reservation) override;
  void OnGranted(DomainId domain, uint64_t offset, uint64_t bytes) override;
  void OnDeletion(const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) override;

  void Step();
  EventKind DrawEvent();
  // None of the plan's tenants may be there.
  bool AnyLife(uint32_t* life);
  // False when its memory or namespace could not be opened.
  bool Open(uint32_t life, uint32_t space);
  // Once more, however often it is open.
  bool OpenNamespace(Life* life, uint32_t space);
  Chain AnyChain();
  std::vector<BlockKey> KeysOf(const Chain& chain) const;
  std::vector<policy::TenantRules> RulesInForce();
  const std::byte* BytesAt(uint32_t life, uint64_t offset);
  uint32_t GenerationAt(uint32_t life, uint64_t offset);
  bool ReadsMayFail(uint32_t life);
  // On the clock that blocks are dated by.
  int64_t Now() const { return node_.DateMs(); }
  void Wrong(std::string what) { findings_.Add(std::move(what)); }
  template <typename... Args>
  void Say(const Args&... args);

  const Plan plan_;
  Random random_;
  EventLog log_;
  Findings findings_;
  Model model_;
  Node node_;
  Coverage coverage_;
  uint64_t event_ = 0;
  uint32_t weights_total_ = 0;
  std::vector<uint32_t> current_;  // by tenant of the plan: its life
  uint64_t last_group_ = 0;
  uint64_t last_operation_ = 0;
  uint32_t tenants_of_boot_ = 0;  // the engine knows
  std::vector<Lease> leases_;
  std::vector<Unfinished> unfinished_;
  std::vector<ReservationId> finished_;   // some, to be named again by a hostile client
  std::map<uint64_t, Waiting> reserves_;  // not yet answered
  uint64_t loads_ = 0;                    // not yet answered
  std::vector<Lost> lost_;                // and to be stored anew
  size_t lease_to_check_ = 0;             // its bytes, at the next event
  engine::DeletionReceipt last_receipt_;
  bool was_recovering_ = false;  // at the last look at the ledger
  bool tick_late_ = false;       // the next one comes more than a tick after the last
  bool crash_next_ = false;
  uint64_t crash_at_ = UINT64_MAX;                  // at that event at the latest
  int64_t looked_ms_ = 0;                           // when it was
  std::array<bool, kTierCount> guarantee_waits_{};  // at the last look
  NvmeDrops nvme_drops_{};                          // then, or when a record went since
  bool durable_read_ = false;                       // what is read now was durable on a sound disk
  int64_t latest_date_ms_ = 0;                      // at any crash so far
  // A catalog was lost at a crash, or a disk that was away is back, and no recovery has come to its end since: of
  // several copies of a block any may be found.
  bool past_back_ = false;
  tier::DiskSet informed_ = tier::kAllDisks;  // their catalogs have every deletion that was reported
  bool recovery_noted_ = false;               // in this boot
  bool pinned_in_boot_ = false;               // something was
  bool catalog_failed_ = false;               // it was told to, in this boot
  bool in_trouble_ = false;                   // devices are held
  std::set<uint32_t> keys_ = {1};             // of the node, by their numbers
};

}  // namespace kvartal::sim
