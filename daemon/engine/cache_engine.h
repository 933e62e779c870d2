// The engine: the verbs of the cache over index, ledger and tiers. Events in, actions out.
// Confined to the engine loop. Single-threaded and deterministic: time, memory, disk and catalog are injected, so a
// simulator runs this very code.
// Invariants: a byte is charged before it exists; nothing is visible before its commit; nothing unverified is
// served; a leased block is never taken away; a limit is never exceeded, on any path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/base/limits.h"
#include "daemon/base/status.h"
#include "daemon/block/block_key.h"
#include "daemon/block/model_layout.h"
#include "daemon/block/namespace_digest.h"
#include "daemon/block/tier_kind.h"
#include "daemon/engine/deletion_receipt.h"
#include "daemon/engine/engine_stats.h"
#include "daemon/policy/eviction_order.h"
#include "daemon/policy/policy_table.h"
#include "daemon/policy/refusal.h"

namespace kvartal::tier {
class DramTier;
class NvmeTier;
class NvmeCatalog;
class TenantCiphers;
}  // namespace kvartal::tier

namespace kvartal::engine {

struct EngineOptions {
  std::string eviction = "lru";
  uint64_t nvme_write_bytes_per_second = 0;    // as long as the disk is to last; 0: it does not matter
  int64_t removed_grace_ms = kRemovedGraceMs;  // from the removal of a tenant's policy to the erasure of its bytes
};

// What the engine works on. Not owned; all outlive it. `nvme` and `catalog` are both null on a node without NVMe,
// `ciphers` on one that encrypts nothing.
struct EngineDevices {
  const Clock* clock = nullptr;
  tier::DramTier* dram = nullptr;
  tier::NvmeTier* nvme = nullptr;
  tier::NvmeCatalog* catalog = nullptr;
  tier::TenantCiphers* ciphers = nullptr;
  uint32_t absent_disks = 0;  // that could not be opened: nobody knows what of whom lies there
};

// Where one block of a lookup or load is. `arena_offset` and `generation` mean something for kDram only.
struct BlockPlace {
  EntryId entry;
  TierKind tier = TierKind::kDram;
  uint32_t generation = 0;
  uint64_t arena_offset = 0;
};

// What a caller owes a Release for. In place: the bytes stay where BlockPlace said. Else the block stays in the cache,
// but has to be loaded before it is read (decision 0006).
struct Hold {
  EntryId entry;
  bool in_place = true;
};
inline Hold HoldOf(const BlockPlace& place) { return {place.entry, place.tier == TierKind::kDram}; }

struct LookupResult {
  uint32_t matched = 0;  // leading keys that are resident somewhere
  uint64_t request = 0;  // this request's number: give it to the Reserve of the same request
};

// One slot of a Reserve.
enum class ReserveOutcome : uint8_t { kGranted, kExists, kRefused };
struct ReservedBlock {
  ReserveOutcome outcome = ReserveOutcome::kRefused;
  policy::Refusal reason = policy::Refusal::kNone;
  ReservationId reservation;
  uint32_t generation = 0;    // of the slot while it is being filled
  uint64_t arena_offset = 0;  // of this session's shard
};

struct ReserveRequest {
  GroupId group;
  NamespaceId ns;
  uint32_t shard = 0;
  uint64_t request = 0;              // from LookupResult; 0: a request of its own
  std::span<const BlockKey> keys;    // consecutive blocks of one chain
  const BlockKey* parent = nullptr;  // of keys[0]; nullptr for a head
  uint32_t first_depth = 0;          // position of keys[0] in its chain
  uint32_t deadline_ms = 0;          // from now: then what has no slot is refused; 0: no such time
};

struct LoadRequest {
  NamespaceId ns;
  std::vector<EntryId> entries = {};      // that the caller holds, in the order of their chain
  GroupId group = GroupId::None();        // whose end ends the wait for room; None: nobody's
  SessionId session = SessionId::None();  // whose end ends it all; None: no session's
  uint32_t deadline_ms = 0;               // from now: then it is answered with what is there; 0: whenever it is
  bool ahead = false;                     // nobody waits: the reads come after those that somebody waits for
};

enum class CommitOutcome : uint8_t {
  kVisible,      // committed; every shard is there
  kShardStored,  // committed; other shards are still missing
  kNotFilling,   // unknown, already committed or aborted
  kNotYours,     // another group's
};

// What a session of a domain may map. The fds stay the engine's.
struct DomainMemory {
  int arena_fd = -1;
  int generation_fd = -1;
  uint64_t arena_bytes = 0;
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<Range> granted;
};

// Told on the engine loop. Implemented by attach.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  // A block this group committed is on NVMe with its metadata: it would survive kill -9.
  virtual void OnDurable(GroupId group, ReservationId reservation) = 0;
  // Memory of `domain` that clients may populate in their mapping from now on.
  virtual void OnGranted(DomainId domain, uint64_t offset, uint64_t bytes) = 0;
  // The engine ended a fill of this group that had lasted too long: its Commit will be told kNotFilling.
  virtual void OnFillEnded(GroupId /*group*/, ReservationId /*reservation*/) {}
  // The disk keeps a tenant from being erased: under its name there is one now that has nothing, and sessions of the
  // one it was are to attach again.
  virtual void OnBegunAnew(const std::string& /*tenant*/) {}
  // Blocks were deleted by policy: they are zeros, or were never to be read again. The receipt is told again, in this
  // life or the next, until `kept` says that it is kept for good: once, on the engine loop, maybe at once.
  virtual void OnDeletion(const DeletionReceipt& /*receipt*/, absl::AnyInvocable<void(bool)> kept) { kept(true); }
};

class CacheEngine {
 public:
  using ReserveDone = absl::AnyInvocable<void(std::vector<ReservedBlock>)>;
  struct LoadResult {
    std::vector<BlockPlace>
        places;  // blocks from the front of the request that are in DRAM now, each leased in place once more
    policy::Refusal reason = policy::Refusal::kNone;  // why it stopped there; kNone when nothing was refused
    bool read_failed = false;  // the next block was lost (device error or mismatch): a miss from there on
  };
  using LoadDone = absl::AnyInvocable<void(LoadResult)>;

  CacheEngine(const EngineOptions& options, const EngineDevices& devices,
              std::shared_ptr<const policy::PolicyTable> policy);
  ~CacheEngine();
  CacheEngine(const CacheEngine&) = delete;
  CacheEngine& operator=(const CacheEngine&) = delete;

  void SetObserver(EngineObserver* observer);

  // --- policy
  // Replaces the snapshot; new limits hold at once for new charges, and usage above them drains as leases end. A tenant
  // that is gone has no guarantee and may not grow; it is erased, provably, when its uid has not come back within
  // removed_grace_ms, and forgotten when its receipt is kept and nobody has anything of it any more.
  void ApplyPolicy(std::shared_ptr<const policy::PolicyTable> policy);
  const policy::PolicyTable& policy() const;
  // None for a name the snapshot does not know. The number stays the tenant's while a policy names it or a namespace of
  // it is open; some time after that it may be another's. A drop that failed may have given it a new one.
  TenantId FindTenant(std::string_view name) const;
  const policy::TenantRules* RulesOf(TenantId tenant) const;
  DomainId DomainOf(TenantId tenant) const;

  // --- attach
  // Makes the arena of the tenant's domain at its first call.
  absl::StatusOr<DomainMemory> OpenMemory(TenantId tenant);
  // Opens (or finds) a digest of a tenant for a session, which owes a CloseNamespace for each time. InvalidArgument:
  // bad layout; FailedPrecondition: the digest is there with another layout; ResourceExhausted: kNamespacesPerTenantMax
  // are open, or kNamespacesKeptMax have blocks.
  absl::StatusOr<NamespaceId> OpenNamespace(TenantId tenant, const NamespaceDigest& digest, const ModelLayout& layout);
  // After the last one the namespace is retired: its blocks stay, and are the tenant's first victims until somebody
  // opens it again. Without blocks it is forgotten, and its number may be another's.
  void CloseNamespace(NamespaceId ns);
  const ModelLayout& LayoutOf(NamespaceId ns) const;

  // --- load path
  // Walks `keys` until the first gap and touches every matched block. `places` gets one element a matched block; the
  // caller owes a Release of HoldOf each: leased in place up to the first block that has to be loaded (its tier is not
  // kDram), held from there on. `request` 0 starts a request; a continued chain passes it on.
  LookupResult Lookup(NamespaceId ns, std::span<const BlockKey> keys, uint64_t prompt_tokens, uint64_t request,
                      std::vector<BlockPlace>* places);
  // Brings blocks the caller holds into DRAM, in order, as many as the tenant may have there now. The result hands over
  // a lease in place for each place, beside what the caller owed before. A block that several ask for is read once.
  void Load(LoadRequest request, LoadDone done);
  // Nobody waits for the Loads of that session: each answers with what it has, and what nobody else waits for is not
  // read any more.
  void EndSession(SessionId session);
  void Release(std::span<const Hold> holds);
  // False for a block that is over age; above a lowered limit, while what could go is in use; while another tenant
  // waits for its guarantee and this one keeps more than its own; and for a block that lies where memory has to become
  // free. Such a lease ends at its time, renewed or not (decision 0007).
  bool MayRenew(std::span<const Hold> holds) const;
  // What a client says of a conversation. `chain`: all it holds of it, front first. kEnded: the blocks from the end up
  // to where another chain branches off are the tenant's first victims, after retired namespaces, until somebody asks
  // for them. kWaiting: they count as asked for now, in their order and for their TTL.
  void Hint(std::span<const Hold> chain, policy::SessionHint hint);
  // Keeps blocks resident until a wall-clock time, against eviction and TTL; on NVMe, across a
  // restart as well. All of them or none; a pin that cannot be kept is refused, not forgotten. kTenantLimit: no tier
  // has room for it within the tenant's guarantee there. kTooLong: maxAge ends before. kParentUnpinned: a block before
  // it is not kept as long. kGone: a block left the cache.
  policy::Refusal Pin(std::span<const Hold> blocks, int64_t until_wall_ms);

  // --- store path
  // Answers when every slot is granted or refused; may wait for memory to be populated or for a write to end.
  void Reserve(const ReserveRequest& request, ReserveDone done);
  CommitOutcome Commit(GroupId group, ReservationId reservation, uint32_t shard);
  // True when it was filling and of this group.
  // `done`: bit i for a shard i that nobody writes any more. While another that is reserved and not committed may be
  // being written, the slot is nobody's for a while.
  bool Abort(GroupId group, ReservationId reservation, uint64_t done = kAllShards);
  // Aborts all that `group` fills, ends what it waits for (a Load answers with what it has, a Reserve not at all),
  // gives its empty extents back. Returns blocks aborted.
  size_t AbortGroup(GroupId group, uint64_t done = kAllShards);
  // Of a fill that was aborted: nobody writes the shards of `done` any more. Its slot is given as soon as that is so of
  // all of them.
  void EndRest(ReservationId reservation, uint64_t done);

  // --- people
  // Deletes everything of a tenant, provably: DRAM punched, NVMe zeroed, a tombstone persisted. `done` with bytes
  // deleted. Unavailable: nothing more could be erased for kDropStuckTicks; what is left goes on being erased, apart
  // from what the tenant has from then on.
  void DropTenant(TenantId tenant, absl::AnyInvocable<void(absl::StatusOr<uint64_t> bytes)> done);

  // --- time
  // Every kTickMs: TTL, empty extents, drains of lowered limits. Bounded work.
  void Tick();
  // More blocks' time was up than a tick may deal with: CatchUp, every kTimerCatchUpMs, does the next part.
  bool behind() const;
  void CatchUp();
  // Reads the catalog (or the headers) back. Lookups are served meanwhile; charges of NVMe wait until `done`.
  void Recover(absl::AnyInvocable<void(absl::Status)> done);
  // No new stores; `done` when no write is under way any more, with what the sync of the catalog came to. Reads go on.
  void Drain(absl::AnyInvocable<void(absl::Status)> done);

  // What the door refused a tenant before it came here: counted and told beside the engine's own.
  void NoteRefusal(TenantId tenant, policy::Refusal reason);
  EngineStats stats() const;
  // KV_CHECKs every invariant that can be recomputed. O(entries): tests and `kvartalctl doctor`.
  void CheckInvariants() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace kvartal::engine
