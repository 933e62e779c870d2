// The door for pods: sockets in front, the engine behind. The facade of this folder.
// Confined to the loop it is given, which is also the engine's.
// Invariants: nothing reaches the engine for a peer nobody vouches for; what a client names is looked up within its own
// group; when the last session of a group is gone, so is everything the group held.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "daemon/attach/attach_stats.h"
#include "daemon/attach/denial_fold.h"
#include "daemon/attach/engine_group.h"
#include "daemon/attach/frame_codec.h"
#include "daemon/attach/late_writers.h"
#include "daemon/attach/listener.h"
#include "daemon/attach/peer_identity.h"
#include "daemon/attach/pod_cgroup.h"
#include "daemon/attach/request_path.h"
#include "daemon/attach/session.h"
#include "daemon/attach/token_attestor.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/limits.h"
#include "daemon/base/status.h"
#include "daemon/engine/cache_engine.h"

namespace kvartal::attach {

struct AttachOptions {
  std::string shared_socket;           // the door of the uid attestor; "": none
  uint32_t shared_socket_mode = 0666;  // who may connect; who may attach is decided by identity
  bool attest_uid = true;
  std::vector<Door> doors;  // the socket attestor: one door a tenant
  uint32_t lease_ms = kLeaseMsDefault;
  std::optional<TokenOptions> tokens;  // the k8s-token attestor; none: tokens are not looked at
  // Of a pid, the text of /proc/PID/cgroup; "" when it cannot be read.
  std::function<std::string(uint32_t pid)> read_cgroup = ReadCgroup;
};

class AttachServer : private engine::EngineObserver {
 public:
  // Nothing is owned; all outlive the server. Registers itself as the engine's observer.
  AttachServer(const AttachOptions& options, EventLoop* loop, const Clock* clock, engine::CacheEngine* engine);
  ~AttachServer() override;
  AttachServer(const AttachServer&) = delete;
  AttachServer& operator=(const AttachServer&) = delete;

  // Opens every door. FailedPrecondition when another daemon answers on one of them; then none is open.
  absl::Status Start();
  // Told of every attach and every denial, on the loop; of many denials by their number.
  void SetDoorObserver(std::function<void(const DoorEvent&)> observer) { door_observer_ = std::move(observer); }
  // The engine has one observer, which this is: what is not for sessions is passed on.
  using DeletionObserver = std::function<void(const engine::DeletionReceipt&, absl::AnyInvocable<void(bool)> kept)>;
  void SetDeletionObserver(DeletionObserver observer) { deletion_observer_ = std::move(observer); }
  // Every kTickMs: leases that were not renewed, peers that said nothing. Bounded work.
  void Tick();
  // The engine has a new snapshot: peers it no longer vouches for are told Goodbye and cut, and so are those of a
  // tenant that was made anew under its old name.
  void OnPolicyChanged();
  // Whose tokens count from now on, and by which keys; nobody's until the first call. Sessions of a key that has left
  // end.
  void SetTokenKeys(const std::string& issuer, token::KeySet keys);
  // UIDs of the pods that have left this node, where somebody knows: their sessions end, and their tokens with them.
  void SetGonePods(const std::vector<std::string>& uids);
  // Before and after a tenant is erased. In between its sessions are gone, with what they leased and were filling, and
  // new ones are refused. False: it is being erased already.
  [[nodiscard]] bool BeginDrop(const std::string& tenant);
  void EndDrop(const std::string& tenant);
  // Tells every session Goodbye and refuses new ones. Sessions that are attached go on reading until Stop.
  void Drain();
  // Ends every session and closes the doors. Also done by the destructor.
  void Stop();

  AttachStats stats() const;

 private:
  void OnDurable(GroupId group, ReservationId reservation) override;
  void OnGranted(DomainId domain, uint64_t offset, uint64_t bytes) override;
  void OnFillEnded(GroupId group, ReservationId reservation) override;
  void OnBegunAnew(const std::string& tenant) override;
  void OnDeletion(const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) override;

  // --- connections
  void OnAccepted(UniqueFd fd, const Door& door);
  void OnSessionEvent(Session* session, uint32_t epoll_events);
  // False: the turn has ended, and there may be more.
  bool ReadFrames(Session* session);
  void HandleFrame(Session* session, size_t bytes);
  void HandleRequest(Session* session, Verb verb);
  void RejectFrame(Session* session, BadFrame bad);
  size_t OwnSessionsLeft(const policy::TenantRules& rules) const;
  bool HasLessThanItsOwn(const std::string& tenant) const;
  bool LeavesOthersTheirs(const std::string& tenant, size_t left) const;
  void RefuseConnection(UniqueFd fd, const PeerCredentials& peer, const Attestation& who, DenialReason reason);
  void EndSession(Session* session);
  void Watch(Session* session);

  // --- the verbs that make or end a session; RequestPath has the others
  void HandleAttach(Session* session);
  // False when answered with an error.
  bool MayAttach(Session* session);
  // Of its beginning, or of why it ends.
  void TellOfSession(const Session& session, CutReason cut) const;
  // nullptr when answered with an error.
  EngineGroup* JoinGroup(Session* session, TenantId tenant, const v1::Attach& in);
  void GrantMemory(Session* session, const engine::DomainMemory& memory);
  void WatchPeerExit(Session* session);
  void OnPeerExit(Session* session);
  void EndGroup(EngineGroup* group, int64_t seen_ns, bool left);
  void GiveBackOfEnded();
  void SayGoodbye(Session* session, std::string_view reason);
  void EndTenant(const std::string& tenant, std::string_view reason, CutReason cut);

  // --- tokens (attach_token.cc)
  Attestors attestors() const { return {options_.attest_uid, tokens_.has_value()}; }
  TokenJudgement JudgeToken(const Session& session, std::string_view token) const;
  int64_t ExpiryOf(const token::PodClaims& pod) const;
  void Deny(Session* session, DenialReason reason, const std::string& why);
  // False when answered with an error.
  bool IdentifyByToken(Session* session, const std::string& token);
  // False when answered with an error; the session goes on as it was.
  bool RenewIdentity(Session* session, const std::string& token);
  void EndExpired();
  // Who waits to be told by its token costs nobody else: with too many of them, or of all connections, the one that has
  // been silent longest goes.
  void CutSilent();
  void UncountStranger(DenialReason denial) { --(denial == DenialReason::kNoToken ? unidentified_ : strangers_); }
  // Why this peer is nobody's any more: kPodGone or kPolicy; kNone: it is still who it was.
  CutReason UnvouchedBy(const Session& session) const;
  // Ends the sessions of peers that nothing vouches for any more.
  void EndUnvouched();

  // --- what is done later on the loop: a session or the engine may be further up the stack
  void Touch(Session* session);
  void TouchLater(Session* session);
  void PostSweep();
  void Sweep();

  void CheckDeadlines();
  void ExpireLeases();
  void CountDenial(const PeerCredentials& peer, const Attestation& who, DenialReason reason);
  void TellOfDoor(const DoorEvent& event) const;
  void LogCut(const Session& session);
  static std::string TenantIsFull(const std::string& tenant);
  static std::string NodeIsFull();

  const AttachOptions options_;
  EventLoop* const loop_;
  const Clock* const clock_;
  engine::CacheEngine* const engine_;
  const std::string daemon_epoch_;  // 16 bytes
  // Callbacks that may come after this object look here first.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  FrameCodec codec_;
  std::vector<std::byte> receive_buffer_;
  SessionTable sessions_;
  GroupTable groups_;
  std::deque<std::unique_ptr<EngineGroup>> ended_groups_;  // whose leases are not all given back
  LateWriters late_writers_;
  RequestPath request_path_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  absl::flat_hash_map<std::string, size_t> sessions_by_tenant_;
  absl::flat_hash_set<std::string> erasing_;  // tenants between BeginDrop and EndDrop
  size_t strangers_ = 0;
  size_t unidentified_ = 0;  // connections that a token may still vouch for
  std::deque<SessionId> unidentified_order_;
  std::optional<TokenAttestor> tokens_;
  std::set<std::pair<int64_t, SessionId>> expiries_;  // of every session that a token identified, soonest first
  bool draining_ = false;

  std::vector<SessionId> touched_;
  bool sweep_posted_ = false;
  struct Deadline {
    int64_t due_ns;
    SessionId session;
    enum class For : uint8_t { kAttach, kGrantAck } what;
  };
  std::deque<Deadline> deadlines_;  // all deadlines are equally long, so the front is the next one due

  std::function<void(const DoorEvent&)> door_observer_;
  DenialFold denials_;
  DeletionObserver deletion_observer_;
  AttachStats counters_;  // gauges in it are filled by stats()
  std::array<int64_t, kDenialReasonCount> denial_logged_ns_{};
  std::array<int64_t, kCutReasonCount> cut_logged_ns_{};
};

}  // namespace kvartal::attach
