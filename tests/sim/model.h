// What must be true, kept beside the engine and without its help: who wrote which bytes, what became of them, who holds
// what, what was promised. Confined to the thread of the simulation.
// Invariant: a nonce stands for the bytes of one reservation and is never used twice; bytes say their nonce themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "daemon/block/block_key.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/policy/drop_reason.h"
#include "daemon/policy/policy_table.h"
#include "tests/sim/plan.h"

namespace kvartal::sim {

// Keys of a namespace: chains that come back, and a region that a scanner walks through.
inline constexpr uint32_t kChains = 12;
inline constexpr uint32_t kChainLength = 64;
inline constexpr uint32_t kScanStart = kChains * kChainLength;
inline constexpr uint32_t kNumbers = kScanStart + 1536;

// The same for every tenant and namespace: what keeps them apart must be the engine.
const BlockKey& KeyOf(uint32_t number);

// The first thing that was not as it must be.
struct Findings {
  std::string first;
  void Add(std::string what) {
    if (first.empty()) first = std::move(what);
  }
  bool any() const { return !first.empty(); }
};

struct BlockRef {
  uint32_t life = 0;
  uint32_t space = 0;
  uint32_t number = 0;
  friend bool operator==(const BlockRef&, const BlockRef&) = default;
};

// One policy object of one tenant, from its appearance until another object of the same name replaces it.
struct Life {
  struct Block {
    uint32_t nonce = 0;            // of the bytes it has in this boot; 0: not seen yet
    uint32_t last_committed = 0;   // the newest nonce that was ever visible
    int64_t latest_commit_ms = 0;  // of all of them: a clock that was set back dates a newer one before an older one
    bool maybe = false;            // it may be found: committed, and neither stored anew nor deleted since
    uint64_t reservation = 0;      // by which it is being filled
    bool beside_older = false;     // stored anew while NVMe might have an older one: either may be found
    int64_t used_ms = 0;           // when it was last used for sure
    int64_t access_ms = 0;         // and when at the latest
    int64_t pinned_until_ms = 0;
    int64_t ever_pinned_until_ms = 0;  // an older record of it may come back with its pin
    uint32_t leases = 0;               // in place
    uint32_t holds = 0;
    uint32_t uses = 0;  // loads and reserves under way, each of which may touch it at any time
  };
  struct Slot {
    uint32_t generation = 0;
    uint32_t nonce = 0;
    uint32_t users = 0;  // leases in place, and the group that fills it
  };

  // Whoever wrote there was cut off, and may be at it until then.
  struct Resting {
    ReservationId reservation;
    int64_t until_ms = 0;
  };

  std::string name;
  uint32_t tenant = 0;  // of the plan
  uint32_t uid = 0;
  policy::TenantRules rules;
  bool in_policy = false;
  bool scribbles = false;
  bool dropping = false;
  bool quota_lowered = false;  // in this boot
  bool was_removed = false;    // in this boot
  int64_t removed_ms = 0;
  uint64_t drop_left = UINT64_MAX;  // by a drop, at the last look
  int64_t drop_moved_ms = 0;        // when it was more before
  uint64_t shortest_age_ms = 0;     // of every maxAge it ever had; 0: none
  uint32_t dead_below = 0;          // nonces below were erased, and that was reported
  uint32_t clear_below = 0;         // those may be in the clear on NVMe, and were not to be any more, once
  uint32_t dropped_below = 0;       // those were to be erased by a drop, however far it came
  std::vector<GroupId> groups;
  std::vector<std::vector<Block>> spaces;
  absl::flat_hash_map<uint64_t, Slot> slots;       // by offset of the block in the arena
  absl::flat_hash_map<uint64_t, Resting> resting;  // by offset
  std::vector<BlockRef> pins;
  uint64_t leases = 0;                                 // in place
  uint64_t loads = 0;                                  // under way
  std::array<uint64_t, kTierCount> charged_bytes{};    // after the last event or tick
  std::array<uint64_t, kTierCount> guarantee_bytes{};  // then
  std::array<uint64_t, kTierCount>
      removed_bytes{};  // when its policy went: it may have so much until its grace is over
  std::array<uint64_t, kTierCount> entitled_bytes{};  // then: guarantee or fair share, whichever is more
  uint64_t evictions = 0;                             // from memory, by then
  uint64_t retired_drops = 0;                         // of namespaces that nobody had open, by then
  uint64_t short_reserve = 0;  // waited then for memory that is guaranteed, and for nothing else; 0: none
  uint64_t nvme_refused = 0, kept_bytes = 0, pinned_bytes = 0;  // by then, too
  uint64_t least_nvme_guarantee = 0;                            // it had in this boot
  bool all_open = false;                                        // then, too: no namespace was retired
  std::array<uint64_t, kTierCount> blocks{};                    // then, too
  int64_t ruled_ms = 0;                                         // when its rules last changed
  std::array<int64_t, kTierCount> within_ms{};  // when it was last within its limit, came nearer, or may not
  // Of this boot.
  TenantId id;
  std::vector<NamespaceId> ns;            // by space; None: never opened
  std::vector<uint32_t> namespace_users;  // by space: how often it is open
  uint64_t last_request = 0;
};

struct Version {
  enum class Fate : uint8_t { kFilling, kCommitted, kAborted };
  BlockRef block;
  Fate fate = Fate::kFilling;
  int64_t commit_ms = 0;
  bool clear = false;  // on NVMe, when it became durable
};

struct Filling {
  BlockRef block;
  GroupId group;
  uint32_t nonce = 0;
  uint64_t offset = 0;  // of the block
  uint64_t missing = 0, taken = 0;
  int64_t asked_ms = 0;
};

// A writer that was cut off, until it is heard of that it writes no more.
struct CutOff {
  ReservationId reservation;
  uint32_t life = 0;
  uint64_t offset = 0;   // of the block
  uint64_t writing = 0;  // bit i: shard i
};

class Model {
 public:
  Model(const Plan& plan, Findings* findings);

  uint32_t AddLife(uint32_t tenant, uint32_t uid, const policy::TenantRules& rules);
  void SetRules(uint32_t life, const policy::TenantRules& rules);
  // Nothing of it can come back, whoever has its name now.
  void Retire(uint32_t life);
  Life& life(uint32_t index) { return lives_[index]; }
  uint32_t life_count() const { return static_cast<uint32_t>(lives_.size()); }
  Life::Block& at(const BlockRef& ref) { return lives_[ref.life].spaces[ref.space][ref.number]; }
  std::string NameOf(const BlockRef& ref) const;
  const Version& version(uint32_t nonce) const { return versions_[nonce]; }
  uint32_t next_nonce() const { return static_cast<uint32_t>(versions_.size()); }
  const absl::flat_hash_map<uint64_t, Filling>& fillings() const { return fillings_; }

  // --- storing
  // The nonce of the bytes to write.
  uint32_t Grant(const BlockRef& ref, GroupId group, uint32_t shard, uint64_t offset,
                 const engine::ReservedBlock& block, int64_t asked_ms, int64_t now_ms);
  // What lies on NVMe is a miss now, and is kept.
  void NoteOffline(int64_t now_ms) { offline_ms_ = now_ms; }
  // Its memory may have to become free: such a fill is ended when its time is up.
  bool MayBeEnded(ReservationId reservation, int64_t now_ms) const;
  size_t CountMayBeEnded(GroupId group, int64_t now_ms) const;
  // It was.
  void EndOverdue(ReservationId reservation) { EndFilling(reservation.value(), Version::Fate::kAborted); }
  engine::CommitOutcome OutcomeOf(GroupId group, ReservationId reservation, uint32_t shard) const;
  void Commit(GroupId group, ReservationId reservation, uint32_t shard, int64_t now_ms);
  bool Abort(GroupId group, ReservationId reservation, uint64_t done, int64_t now_ms);
  size_t AbortGroup(GroupId group, uint64_t done, int64_t now_ms);
  const std::vector<CutOff>& cut_off() const { return cut_off_; }
  // Nobody writes those shards of cut_off()[at] any more. True when that was all of it, before its time.
  bool EndRest(size_t at, uint64_t done, int64_t now_ms);

  // --- serving
  // It was found. `in_place`: in DRAM, else in any tier.
  void Found(const BlockRef& ref, bool in_place, int64_t now_ms);
  // It was not found, and nothing but space that another tenant is owed allows that.
  bool HasRightTo(const BlockRef& ref, int64_t now_ms);
  // It may have been deleted for its age, though the present rules let it be as old.
  bool MayHaveAged(const BlockRef& ref, int64_t now_ms);
  // By its age nobody may have it any more.
  bool IsOverAge(uint32_t nonce, int64_t now_ms) const;
  // Its bytes say `nonce`.
  void Read(const BlockRef& ref, uint32_t nonce);
  void NoteSlot(const BlockRef& ref, uint64_t offset, uint32_t generation, uint32_t nonce);
  void AddHold(const BlockRef& ref, bool in_place, uint64_t offset);
  void EndHold(const BlockRef& ref, bool in_place, uint64_t offset, int64_t now_ms);
  void StartUse(const BlockRef& ref) { ++at(ref).uses; }
  void EndUse(const BlockRef& ref, int64_t now_ms);
  void Pin(const BlockRef& ref, int64_t until_ms, int64_t now_ms);
  uint64_t held_blocks() const { return held_blocks_; }

  // --- deleting
  void StartDrop(uint32_t life);
  // The engine knows the tenant as another now, who has nothing.
  void MoveOn(uint32_t life, TenantId id);
  void EndDrop(uint32_t life, uint32_t nonces_below, bool reported);

  // --- what survives
  // `in_the_clear`: the nonce that lies there in the clear; 0: none.
  void Durable(ReservationId reservation, SlotId slot, uint32_t in_the_clear);
  // Keys went: what was encrypted up to now may be beyond reach.
  void NoteKeysGone() { sealed_below_ = next_nonce(); }
  // By its policy no byte of it may be on NVMe in the clear, ever.
  bool IsSecret(uint32_t nonce) const;
  // It is durable by an older record. Which block it is; nullopt: nobody waits to hear of it.
  std::optional<BlockRef> EndAwaitDurable(ReservationId reservation);
  void Forgotten(SlotId slot);
  // Of all that was durable; of that life.
  void ForgetPromises() { durable_.clear(); }
  void ForgetPromises(uint32_t life);
  void ForgetPromises(absl::FunctionRef<bool(SlotId)> of) {
    const auto gone = [&](const auto& item) { return of(item.first); };
    std::erase_if(durable_, gone);
    std::erase_if(durable_synced_, gone);
  }
  // May a block that is durable lose its record? `reason`: what the engine says; nullopt: it counted none.
  // For one of those reasons; without any when recovery refused it.
  bool MayBeForgotten(uint32_t nonce, const std::vector<policy::DropReason>& reasons, int64_t now_ms,
                      int64_t latest_ms) const;
  void Synced() { durable_synced_ = durable_; }
  // `loses_catalog`: of some disk. `forgets_deletions`: of every disk that will be there.
  void Crash(bool power_cut, bool loses_catalog, bool forgets_deletions);
  const std::map<SlotId, uint32_t>& durable() const { return durable_; }
  // Pins that were persisted, for all one can know, and whether one of them still has to be kept.
  struct DurablePin {
    BlockRef block;
    uint32_t nonce = 0;
    int64_t until_ms = 0;
    SlotId slot;
  };
  std::vector<DurablePin> DurablePins(int64_t now_ms);
  // `latest_ms`: the latest date there was. What was over age then may be erased half, though the clock was set back.
  bool MustBeKept(const DurablePin& pin, int64_t now_ms, int64_t latest_ms) const;
  // Any in force.
  bool HasPins(int64_t now_ms);
  // It was promised to be there after the crash, whatever the engine did since, if there is room for it.
  bool MustHaveSurvived(uint32_t nonce, int64_t now_ms, int64_t latest_ms) const;
  void NewBoot() {
    ++boots_;
    offline_ms_ = INT64_MIN;
    cut_off_.clear();
  }
  void SetRecovering(bool recovering, int64_t now_ms) {
    recovering_ = recovering;
    if (recovering) recovering_ms_ = now_ms;
  }
  // It was committed or aborted already.
  bool HasEnded(ReservationId reservation) const { return ended_.contains(reservation.value()); }
  uint64_t boots() const { return boots_; }

 private:
  // Ticks of the engine, and of a restart in between.
  int64_t SlackMs() const;
  bool PinsAreOnNvme(const Life& life) const;
  // Its copy on NVMe need not be served: it is in the clear and may not be, or its key may be gone.
  bool MayBeForgotten(uint32_t nonce, policy::DropReason reason, int64_t now_ms, int64_t latest_ms) const;
  bool MayBeUnreadable(uint32_t nonce) const;
  bool TooOld(const Life& life, int64_t commit_ms, int64_t now_ms) const;
  // Whatever policy says by now: it may have been erased half when a crash came.
  bool MayHaveAged(const Version& version, int64_t now_ms) const;
  bool Pinned(const Life::Block& block, int64_t now_ms) const;
  void Rest(ReservationId reservation, uint64_t done, int64_t now_ms);
  void EndFilling(uint64_t reservation, Version::Fate fate);
  void EndOverdueAt(const BlockRef& ref, uint64_t offset, int64_t now_ms);

  const Plan& plan_;
  Findings& findings_;
  std::vector<Life> lives_;
  std::vector<Version> versions_;
  absl::flat_hash_map<uint64_t, Filling> fillings_;  // by reservation
  std::vector<CutOff> cut_off_;                      // of this boot, the last of them
  std::map<uint64_t, uint32_t> awaits_durable_;      // reservation -> nonce
  std::map<SlotId, uint32_t> durable_, durable_synced_;
  absl::flat_hash_set<uint64_t> ended_;  // reservations of this boot
  uint64_t held_blocks_ = 0;
  uint32_t sealed_below_ = 0;  // nonces below may have been encrypted under a key that went
  uint64_t boots_ = 0;
  bool recovering_ = false;
  int64_t recovering_ms_ = INT64_MIN;  // when it did last
  int64_t offline_ms_ = INT64_MIN;     // when it last was, in this boot
};

}  // namespace kvartal::sim
