// The verbs of an attached session: a frame in, the engine asked, an answer out. Lookup -> Load -> Release and
// Reserve -> Commit or Abort, with Renew, Pin, Hint and OpenNamespace beside them.
// Confined to the engine loop.
// Invariants: namespaces are those the session opened, leases and reservations those of its own group; every verb that
// has an answer gets exactly one, unless its session ends first; Lookup and Release allocate nothing once warm; what a
// frame makes the engine look at is charged (AttachStats::positions).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/attach/attach_stats.h"
#include "daemon/attach/engine_group.h"
#include "daemon/attach/frame_codec.h"
#include "daemon/attach/session.h"
#include "daemon/base/clock.h"
#include "daemon/engine/cache_engine.h"

namespace kvartal::attach {

class RequestPath {
 public:
  struct Parts {
    const Clock* clock = nullptr;
    engine::CacheEngine* engine = nullptr;
    FrameCodec* codec = nullptr;
    SessionTable* sessions = nullptr;
    GroupTable* groups = nullptr;
    AttachStats* stats = nullptr;
    std::weak_ptr<bool> alive;            // of the owner: answers of the engine may come after it
    std::function<void(Session*)> touch;  // an answer was sent outside the session's own event
    std::function<void()> unfinished;     // AbortOrphans or GiveBackOwed has work, in a later turn
  };
  explicit RequestPath(Parts parts);

  // The verb that codec->frame() holds. REQUIRES: the session is attached; the frame's arguments were checked.
  void Handle(Session* session, Verb verb);
  // The leases that the frame gives back, whatever else is in it.
  void GiveBack(Session* session);
  void SendError(Session* session, v1::Error::Code code, std::string_view message, std::string_view refusal = "");
  // Slots that were granted for a session that had ended meanwhile: nobody knows them, so they are aborted.
  void AbortOrphans();
  // The next part of what large releases, of any group, left to be given back.
  void GiveBackOwed();
  // A session of the group has ended: what it reserved and did not commit, nobody will. `left`: nor writes it.
  void AbortFills(EngineGroup* group, std::span<const EngineGroup::Fill> fills, bool left);

 private:
  void OpenNamespace(Session* session);
  void CloseNamespace(Session* session);
  void Lookup(Session* session);
  void Load(Session* session);
  void LoadAhead(Session* session);
  // `done` after the lease has what came.
  void StartLoad(Session* session, const Lease& lease, const v1::Load& in,
                 std::function<void(const engine::CacheEngine::LoadResult&)> done);
  void Release(Session* session);
  // The first `count` blocks that are left; 0: all.
  void ReleaseLease(Session* session, uint64_t id, uint32_t count);
  uint32_t GiveBackOf(EngineGroup* group, uint32_t blocks_max);
  void Reserve(Session* session);
  void Commit(Session* session);
  void Abort(Session* session);
  void Renew(Session* session);
  void Pin(Session* session);
  void Hint(Session* session);

  // nullptr when answered with an error.
  Lease* LeaseOf(Session* session, uint64_t id);
  bool NamespaceIsOpen(Session* session, uint32_t ns);
  // Answers with a refusal that the engine did not make, and has it counted with those.
  void Refuse(Session* session, policy::Refusal reason, std::string_view message);
  // False when answered with a refusal.
  bool MayLease(Session* session, const Lease* lease, size_t blocks);
  // Whether it may be renewed: looks through all that is left of it.
  bool Judge(const Lease& lease);
  bool MayWait(Session* session);
  struct Asked {
    SessionId session;
    GroupId group;
    uint64_t request_id = 0;
    uint32_t shard = 0;
    size_t blocks = 0;
  };
  struct Orphan {
    GroupId group;
    ReservationId reservation;
    uint32_t shard = 0;
  };
  void OnReserved(const Asked& asked, std::vector<engine::ReservedBlock> blocks);
  // The leases a Load hands over: the lease it was for takes them, or they are given back.
  void TakeOver(GroupId group_id, LeaseId lease_id, uint32_t first, std::span<const engine::BlockPlace> places);
  void OnLoaded(SessionId id, uint64_t request_id, uint32_t first, const engine::CacheEngine::LoadResult& result);
  uint64_t request_id() const { return parts_.codec->frame().request_id(); }
  // So much of its session's turn is used up.
  void Charge(size_t blocks) { parts_.stats->positions += blocks; }

  const Parts parts_;
  std::vector<engine::BlockPlace> places_;  // reused by every Lookup
  std::string outcomes_;                    // reused by every Commit
  std::vector<Orphan> orphans_;
  bool owing_ = false;  // some group has released more than was given back
};

}  // namespace kvartal::attach
