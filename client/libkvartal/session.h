// One connection to a daemon and everything that lives and dies with it: request ids, the arena, leases to renew, what
// the daemon says unasked. The calling thread asks; the keeper renews, and reads when nobody asks. Guarded by
// receive_mutex_: whatever comes in. The calling thread holds it from before a request is sent until its answer is
// there, so that the keeper can never take an answer away. Sends need no lock: a frame is one packet.
// Invariants: an answer reaches exactly the request that asked for it; a lease or slot that comes too late for its
// request is handed back; what the daemon has to hear it hears in order, before the next request, or the session ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "client/libkvartal/arena_map.h"
#include "client/libkvartal/arena_set.h"
#include "client/libkvartal/bell.h"
#include "client/libkvartal/connection.h"
#include "daemon/attach/attach.pb.h"

namespace kvartal::client {

namespace wire = ::kvartal::attach::v1;

class Session {
 public:
  Session(std::unique_ptr<Connection> connection, std::shared_ptr<Bell> bell, std::shared_ptr<ArenaSet> arenas);
  ~Session();

  // --- calling thread
  // The next request, empty but for its id. Its messages and buffers are reused.
  wire::ClientFrame* NewRequest();
  // Sends it and waits for its answer. Not kOk: failure() says why; after kClosed and kBadFrame the session is over.
  IoResult Call(const Deadline& deadline);
  const wire::ServerFrame& answer() const { return answer_; }
  // The request of the last Call is on its way, answered or not.
  bool sent() const { return sent_; }
  // Sends a request that has no answer; false when the daemon does not take it.
  bool Tell();
  // The same, but what the daemon does not take now it hears before the next request, or as soon as it takes it.
  void TellSurely();
  // Gives slots back, told as surely.
  void AbortSurely(std::span<const uint64_t> reservations);
  // Ends a lease. The word travels with the next Call, or by the keeper within kKeeperTickMs: a packet of its own
  // would wake the daemon beside the computing program.
  void GiveBack(uint64_t lease);
  // Handles what the daemon said unasked, waiting until `deadline` for the first of it. kOk when there was something.
  IoResult Listen(const Deadline& deadline);
  // The daemon broke the protocol: ends the session.
  IoResult Violation(const std::string& what);
  const std::string& failure() const { return failure_; }
  // Why a session is over that the keeper found to be so.
  std::string EndReason();
  // What pointers are made from; nullptr before the grant and when the session is over. As of the last Call or Listen.
  std::shared_ptr<ArenaMap> arena() const { return arena_seen_.lock(); }
  // Whether TakeDurable has something. As of the last Call or Listen.
  bool durable_news() const { return durable_news_; }
  // Appends reservations that became durable; returns how many did, counted also where the backlog was full.
  uint64_t TakeDurable(std::vector<uint64_t>* reservations);
  void AddLease(uint64_t lease);
  void DropLease(uint64_t lease);
  void SetLeaseMs(uint32_t lease_ms) { lease_ms_.store(lease_ms); }
  // The session ends by itself after `identity_ms` (0: it does not) unless a newer token of that file is brought; the
  // one it came with is the last request's. REQUIRES: no keeper watches the session yet.
  void KeepIdentity(const std::string& token_path, uint64_t identity_ms);

  // --- any thread
  bool over() const { return over_.load(std::memory_order_acquire); }
  void End();
  uint32_t lease_ms() const { return lease_ms_.load(); }
  int fd() const { return connection_->fd(); }

  // --- keeper's thread
  void RenewLeases();
  // Brings the file's token when it is not the one the daemon has.
  void RenewIdentity();
  // From now until the file is to be looked at again.
  int64_t NextIdentityLookNs() const;
  // Every kKeeperTickMs: sends what is still to be told, and reads for a program that made no call since the last one.
  // True when there is nothing more to do until the daemon says something or the bell rings.
  bool Tick();
  // Reads what lies there unless a call is reading.
  void Drain();
  // Makes a part of the granted ranges present. False when nothing is left to do.
  bool PopulatePart();
  // REQUIRES: it is over. Only leases use its arena from now on.
  void LeaveArena();

 private:
  enum class Heard { kAnswer, kOther, kViolation };
  // REQUIRES, all of these: receive_mutex_ is held.
  IoResult AwaitAnswer(const Deadline* deadline);
  Heard Handle(const wire::ServerFrame& frame, ReceivedFds* fds, uint64_t awaited);
  Heard HandleUnasked(const wire::ServerFrame& frame, ReceivedFds* fds);
  Heard TakeGrant(const wire::MemoryGrant& grant, ReceivedFds* fds);
  // Hands back what a late answer carries.
  void HandBack(const wire::ServerFrame& late);
  Heard ReceiveOne(char* buffer, wire::ServerFrame* frame, uint64_t awaited, const Deadline* deadline,
                   IoResult* result);
  IoResult Fail(IoResult result);
  // The deadline passed with the request on its way.
  IoResult Abandon();
  void ShowNews();
  void TakeRenewal(const wire::ServerFrame& answer);
  // More is untold than can be kept: the end of the session tells all of it.
  void GiveUp();

  IoResult SendAside(const wire::ClientFrame& frame);
  // Sends what is untold, then takes releases along. False when the deadline passed before.
  bool AwaitTurn(const Deadline& deadline);
  // The request was not sent: what was to travel with it is still to be told.
  void KeepReleases();
  // Sends it, or keeps it as untold; false when too much is.
  bool SendOrKeep(const wire::ClientFrame& frame);
  bool AbortOrKeep(std::span<const uint64_t> reservations);
  // REQUIRES, all of these: keeper_mutex_ is held. False while the daemon does not take it.
  bool SendUntold();
  bool SendUntoldAndReleases();
  void WakeKeeper();
  uint64_t NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  const std::unique_ptr<Connection> connection_;
  const std::shared_ptr<Bell> bell_;
  const std::shared_ptr<ArenaSet> arenas_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<bool> over_{false};
  std::atomic<uint32_t> lease_ms_;
  std::atomic<uint64_t> reads_{0};  // grows when the calling thread begins and when it ends to read: odd while it does

  std::atomic<int64_t> identity_until_ns_{0};   // 0: for as long as the session lasts
  std::atomic<uint64_t> identity_request_{0};   // of the token that is on its way
  std::atomic<uint64_t> identity_accepted_{0};  // of the last token that the daemon took

  // The calling thread's.
  wire::ClientFrame request_;
  wire::ServerFrame answer_;
  std::unique_ptr<char[]> send_buffer_, receive_buffer_;
  std::string failure_;
  std::weak_ptr<ArenaMap> arena_seen_;
  bool durable_news_ = false;
  bool sent_ = false;

  // The keeper's.
  wire::ClientFrame keeper_request_;
  wire::ServerFrame keeper_frame_;
  std::unique_ptr<char[]> keeper_buffer_;
  uint64_t reads_seen_ = 0;
  std::string token_path_, token_;  // the token: the last that was sent, or that the session came with
  uint64_t token_request_ = 0;      // that it was sent with; 0: it is the one the session came with

  std::mutex receive_mutex_;
  // Guarded by receive_mutex_
  std::shared_ptr<ArenaMap> arena_;
  std::vector<uint64_t> abandoned_lookups_;
  std::vector<uint64_t> durable_;
  uint64_t durable_uncounted_ = 0;
  uint32_t silent_calls_ = 0;
  std::string reason_;  // the daemon's last word, or what it did wrong

  std::mutex keeper_mutex_;
  // Guarded by keeper_mutex_: what the keeper works on while a call may be waiting.
  std::vector<uint64_t> leases_;
  std::vector<uint64_t> released_;        // and the daemon is still to hear of it
  std::deque<wire::ClientFrame> untold_;  // what it did not take, oldest first; one Release a lease
  bool keeper_sleeps_ = false;            // until it is rung for
  std::shared_ptr<ArenaMap> arena_to_populate_;
};

}  // namespace kvartal::client
