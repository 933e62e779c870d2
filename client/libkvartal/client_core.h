// A client: what stands behind every kv_* call. Finds the daemon (again), opens namespaces (again), turns calls into
// requests and checks every answer before a pointer is made of it. Confined to one thread at a time, but for what says
// that any may ask. Invariants: a call is back by its deadline; a session that broke the protocol is never used again;
// leases and reservations of an ended session are never sent to a later one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "client/libkvartal/kvartal.h"
#include "client/libkvartal/lease.h"
#include "client/libkvartal/process_mark.h"
#include "client/libkvartal/session.h"
#include "client/libkvartal/session_keeper.h"

namespace kvartal::client {

// What the daemon is told of a deadline, so that what it has by then is here in time.
uint32_t AnswerWithinMs(const Deadline& deadline);

// What a slot is that was not granted.
inline constexpr kv_slot kNoSlot = {nullptr, 0, KV_SLOT_REFUSED};

class ClientCore {
 public:
  // `token_path`: of a ServiceAccount token; "": none.
  ClientCore(std::string socket_path, std::string token_path, std::string client_name, std::string join_group,
             std::shared_ptr<Bell> bell);
  ~ClientCore();
  ClientCore(const ClientCore&) = delete;
  ClientCore& operator=(const ClientCore&) = delete;

  // The first attach. KV_NOT_FOUND when the group to join is unknown; later attaches make a new one then.
  kv_status Attach(const Deadline& deadline);
  kv_status OpenNamespace(const uint8_t* digest, const kv_layout& layout, kv_namespace* ns, const Deadline& deadline);
  kv_status CloseNamespace(kv_namespace ns);

  kv_status Lookup(kv_namespace ns, const uint8_t* keys, uint32_t count, uint64_t prompt_tokens, kv_lease** lease,
                   uint32_t* matched, uint64_t* request, const Deadline& deadline);
  kv_status Load(kv_lease* lease, uint32_t first, uint32_t count, uint32_t* loaded, const Deadline& deadline);
  kv_status Prefetch(kv_lease* lease, uint32_t first, uint32_t count);
  // A handle on a lease of another session of the group: its blocks have no place until they are loaded.
  kv_status Borrow(kv_namespace ns, uint64_t id, uint32_t first, uint32_t count, kv_lease** lease,
                   const Deadline& deadline);
  void Release(kv_lease* lease, uint32_t count);
  kv_status Pin(const kv_lease* lease, uint64_t until_wall_ms, const Deadline& deadline);
  kv_status Hint(const kv_lease* lease, kv_hint_what what);
  kv_status Renew(const Deadline& deadline);

  // REQUIRES: each of `slots` is kNoSlot.
  kv_status Reserve(const kv_reserve_args& args, kv_slot* slots, const Deadline& deadline);
  kv_status Commit(const kv_slot* slots, uint32_t count, uint32_t shard, uint32_t* committed, const Deadline& deadline);
  kv_status Abort(const kv_slot* slots, uint32_t count, const Deadline& deadline);

  kv_status Poll(const Deadline& deadline, uint64_t* durable);
  void OnDurable(void (*callback)(void*, uint64_t), void* context);

  // --- what it knows
  bool InForkedChild() const { return !mark_.IsHere(); }  // any thread
  bool connected() const { return session_ != nullptr && !session_->over(); }
  // The same for any thread, also while another makes a call.
  bool AskConnected() const;
  const std::string& last_error() const { return last_error_; }
  const std::string& last_refusal() const { return last_refusal_; }
  const std::string& tenant() const { return tenant_; }
  const std::string& group() const { return group_; }  // empty before the first attach
  kv_status Fail(kv_status status, std::string message);
  void BeginCall();

 private:
  struct Namespace {
    bool open = false;  // by the program
    std::array<uint8_t, KV_DIGEST_BYTES> digest{};
    kv_layout layout{};
    uint64_t session_serial = 0;  // where `remote` and what follows hold
    uint32_t remote = 0;
    uint32_t slot_bytes = 0;
    uint32_t shard_stride_bytes = 0;
  };

  // Programs count namespaces from 1: KV_NAMESPACE_NONE is none of theirs.
  bool IsOpen(kv_namespace ns) const { return ns - 1 < namespaces_.size() && namespaces_[ns - 1].open; }
  Namespace& At(kv_namespace ns) { return namespaces_[ns - 1]; }  // REQUIRES: IsOpen(ns)

  kv_status FailUnopened(kv_namespace ns);

  // --- session (client_core.cc)
  kv_status Connect(const Deadline& deadline);
  kv_status TryAttach(const Deadline& deadline);
  kv_status Welcome(std::shared_ptr<Session> session);
  void LeaveSession();
  void SetSession(std::shared_ptr<Session> session);
  void ScheduleRetry(kv_status status);
  // Sends the session's request, waits, maps a refusal or error to a status.
  kv_status Exchange(const Deadline& deadline);
  kv_status FromError(const wire::Error& error);
  kv_status Violation(const std::string& what);
  void DeliverDurable();
  kv_status Ready(kv_namespace ns, const Deadline& deadline, Namespace** found);
  kv_status OpenRemote(Namespace* ns, const Deadline& deadline);

  // --- load path (client_load.cc)
  kv_status LookupPart(Namespace* ns, std::span<const uint8_t> keys, uint64_t prompt_tokens, uint64_t* request,
                       kv_lease** lease, uint32_t* matched, const Deadline& deadline);
  kv_status TakeLookedUp(const Namespace& ns, uint32_t asked, uint64_t* request, kv_lease** lease);
  kv_status LoadPart(kv_lease* lease, uint32_t first, uint32_t count, uint32_t* loaded, const Deadline& deadline);
  // Sets block `i` of the lease; false when the daemon named a place that cannot be.
  bool Place(kv_lease* lease, uint32_t i, int tier, uint64_t offset, uint32_t generation);
  kv_status CheckLease(const kv_lease* lease);
  kv_status CheckRange(const kv_lease* lease, uint32_t first, uint32_t count);
  kv_lease* NewLease(const Namespace& ns, uint64_t id);
  void FreeLease(kv_lease* lease);

  // --- store path (client_store.cc)
  kv_status TakeReserved(const kv_reserve_args& args, const Namespace& ns, kv_slot* slots);
  bool IsOfThisSession(const kv_slot& slot) const;
  // A Commit or an Abort of `slots` came to `status`, and the daemon has not heard of them: nobody will write or commit
  // them any more, which it is told as soon as it takes it.
  kv_status AbortUnheard(std::span<const kv_slot> slots, kv_status status);

  const ProcessMark mark_ = ProcessMark::Here();
  const std::string socket_path_, token_path_, client_name_, join_group_;
  std::string last_error_, last_refusal_, tenant_, group_;

  std::unique_ptr<SessionKeeper> keeper_;
  mutable std::mutex session_mutex_;
  std::shared_ptr<Session> session_;  // set by the calling thread under session_mutex_, which any other reads it under
  uint64_t session_serial_ = 0;
  bool session_proved_ = false;  // answered anything but the attach: the next reconnect need not wait

  int64_t next_attempt_ns_ = 0;
  uint32_t backoff_ms_ = 0;
  kv_status attempt_status_ = KV_UNAVAILABLE;
  std::string attempt_error_;
  std::minstd_rand jitter_;

  std::vector<Namespace> namespaces_;              // by kv_namespace - 1
  std::vector<std::unique_ptr<kv_lease>> leases_;  // held by the program
  std::vector<std::unique_ptr<kv_lease>> spare_leases_;

  uint64_t durable_total_ = 0;
  std::vector<uint64_t> durable_;
  void (*durable_callback_)(void*, uint64_t) = nullptr;
  void* durable_context_ = nullptr;
};

}  // namespace kvartal::client
