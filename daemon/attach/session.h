// One connection: a peer, who it was taken for, and what it is still to be told.
// Confined to the engine loop.
// Invariants: the tenant is decided when the connection is accepted, by its Attach where a token says it, and never
// changes; once `cut` is set nothing more is
// read, and the owner ends the session as soon as nobody up the stack uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/attach/attach_stats.h"
#include "daemon/attach/engine_group.h"
#include "daemon/attach/frame_codec.h"
#include "daemon/attach/outbox.h"
#include "daemon/attach/peer_identity.h"
#include "daemon/base/ids.h"
#include "daemon/base/unique_fd.h"
#include "daemon/engine/cache_engine.h"

namespace kvartal::attach {

class Session {
 public:
  enum class Received : uint8_t { kFrame, kNothing, kEnd };

  Session(SessionId id, UniqueFd socket, Evidence evidence, Attestation who, int64_t now_ns);

  SessionId id() const { return id_; }
  int socket() const { return socket_.get(); }
  const Evidence& evidence() const { return evidence_; }
  const PeerCredentials& peer() const { return evidence_.peer; }
  const Attestation& who() const { return who_; }
  // What a token adds. REQUIRES: the tenant that was known before, if any.
  void Identify(token::PodClaims pod, Attestation who, int64_t until_ns);
  // When the identity ends by itself; 0: it does not.
  int64_t identity_until_ns() const { return identity_until_ns_; }
  uint64_t IdentityMs(int64_t now_ns) const;
  int64_t connected_ns() const { return connected_ns_; }

  // One packet into `buffer`. kEnd: either `cut` is set, or `*bad` says what is wrong with the packet.
  Received Receive(std::span<std::byte> buffer, size_t* bytes, BadFrame* bad);
  // That wait to be received.
  size_t UnreadBytes() const;
  // Sets `cut` when the client does not read, or is gone.
  void Send(FrameCodec* codec, const ServerFrame& frame, const OutgoingFds& fds = {});
  void SendError(FrameCodec* codec, uint64_t request_id, v1::Error::Code code, std::string_view message,
                 std::string_view refusal = "");
  // The socket takes frames again.
  void FlushOutbox(FrameCodec* codec);
  // Reads and forgets what still waits, so that closing does not throw away what the client has yet to read.
  void DiscardUnread();
  // For the client this is the end, though a copy of this process may have the socket open (the self-check has).
  void HangUp();

  // Events that the engine tells in its own time: kept here while the client does not read, so that they stay few
  // frames. Sets `cut` when they are too many.
  void HoldGranted(const engine::DomainMemory::Range& range);
  void HoldDurable(ReservationId reservation);
  // Uses the codec's reply: call it before NewReply, not after.
  void TellHeld(FrameCodec* codec);

  void Cut(CutReason reason) {
    if (cut_ == CutReason::kNone) cut_ = reason;
  }
  CutReason cut() const { return cut_; }
  bool alive() const { return cut_ == CutReason::kNone; }
  // Writes no more: it said so, or its process has ended. Who was cut off or hung up may be in the middle of a copy.
  bool left() const { return cut_ == CutReason::kDetached || last_words.has_value(); }
  bool wants_to_write() const { return !outbox_.empty(); }

  EngineGroup* group = nullptr;  // set by Attach
  std::string tenant_uid;        // which tenant of that name, from Attach on
  std::string client;            // its own name for itself, printable
  UniqueFd peer_exit;            // pidfd, from Attach on
  // Of a peer that has exited: bytes it had sent and nobody has read yet. What comes after them is nobody's.
  std::optional<size_t> last_words;
  bool grant_unacked = false;
  absl::flat_hash_set<uint32_t> namespaces;  // that it has open, each once
  size_t pending_requests = 0;               // Reserves and Loads under way
  uint32_t watched_events = 0;
  bool touched = false;  // the owner looks after it at the end of the round

 private:
  void Account(Outbox::Outcome outcome);

  const SessionId id_;
  const UniqueFd socket_;
  Evidence evidence_;
  Attestation who_;
  int64_t identity_until_ns_ = 0;
  const int64_t connected_ns_;
  Outbox outbox_;
  std::vector<engine::DomainMemory::Range> untold_ranges_;
  std::vector<uint64_t> untold_durables_;
  CutReason cut_ = CutReason::kNone;
};

// Every connection of the node. Owns them.
class SessionTable {
 public:
  Session* Create(UniqueFd socket, Evidence evidence, Attestation who, int64_t now_ns);
  // nullptr when it has ended.
  Session* Find(SessionId id) const;
  std::unique_ptr<Session> Remove(SessionId id);
  size_t size() const { return by_id_.size(); }
  const absl::flat_hash_map<SessionId, std::unique_ptr<Session>>& all() const { return by_id_; }

 private:
  uint64_t last_id_ = 0;
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> by_id_;
};

}  // namespace kvartal::attach
