#include "daemon/attach/attach_server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/log.h"

namespace kvartal::attach {
namespace {

using Code = v1::Error;

}  // namespace

AttachServer::AttachServer(const AttachOptions& options, EventLoop* loop, const Clock* clock,
                           engine::CacheEngine* engine)
    : options_(options),
      loop_(loop),
      clock_(clock),
      engine_(engine),
      daemon_epoch_(RandomName()),
      receive_buffer_(kFrameBytesMax),
      groups_(int64_t{options.lease_ms} * kNsPerMs, RandomLeaseSerial()),
      late_writers_(loop, clock, engine),
      request_path_({clock, engine, &codec_, &sessions_, &groups_, &counters_, alive_,
                     [this](Session* session) { Touch(session); }, [this] { PostSweep(); }}) {
  KV_CHECK(options_.lease_ms > 0 && options_.lease_ms <= kLeaseMsMax);
  if (options_.tokens.has_value()) tokens_.emplace(*options_.tokens);
  engine_->SetObserver(this);
}

AttachServer::~AttachServer() {
  Stop();
  engine_->SetObserver(nullptr);
}

absl::Status AttachServer::Start() {
  std::vector<Door> doors = options_.doors;
  if (!options_.shared_socket.empty()) doors.push_back({"", options_.shared_socket, options_.shared_socket_mode});
  for (const Door& door : doors) {
    auto listener =
        Listener::Open(door, loop_, [this](UniqueFd fd, const Door& from) { OnAccepted(std::move(fd), from); });
    if (!listener.ok()) {
      listeners_.clear();
      return std::move(listener).status();
    }
    listeners_.push_back(*std::move(listener));
  }
  return absl::OkStatus();
}

void AttachServer::Stop() {
  listeners_.clear();
  while (sessions_.size() > 0) {
    Session* session = sessions_.all().begin()->second.get();
    SayGoodbye(session, "the daemon is stopping: attach again later");
    session->Cut(CutReason::kStopped);
    EndSession(session);
  }
  while (!ended_groups_.empty()) GiveBackOfEnded();
  denials_.End([this](const DoorEvent& event) { TellOfDoor(event); });
}

// --- connections

void AttachServer::OnAccepted(UniqueFd fd, const Door& door) {
  ++counters_.accepted;
  Attestation who;
  Evidence evidence;
  evidence.door = door.name;
  const PeerCredentials& peer = evidence.peer;
  if (const auto asked = ReadPeerCredentials(fd.get()); asked.ok()) {
    evidence.peer = *asked;
    who = Attest(engine_->policy(), evidence, attestors());
  } else {
    who.denial = DenialReason::kNoCredentials;
    who.why = std::string(asked.status().message());
  }
  const bool unidentified = who.denial == DenialReason::kNoToken;
  if (unidentified || HasLessThanItsOwn(who.tenant)) CutSilent();
  const size_t after = sessions_.size() + 1;
  // Whose it is shows with its token, and whether that leaves others theirs is judged then.
  if (after > kSessionsMax || (!unidentified && !LeavesOthersTheirs(who.tenant, kSessionsMax - after)))
    return RefuseConnection(std::move(fd), peer, who, DenialReason::kNodeSessions);
  if (unidentified) {
    ++unidentified_;
  } else if (who.denial != DenialReason::kNone) {
    // Told why when they attach, as long as they are few; more of them are told at once.
    if (strangers_ >= kStrangersMax) return RefuseConnection(std::move(fd), peer, who, DenialReason::kStrangers);
    ++strangers_;
  } else {
    // A connection counts for its tenant before it has said a word: silent ones cost nobody else.
    const policy::TenantRules* rules = engine_->policy().FindByName(who.tenant);
    size_t& held = sessions_by_tenant_[who.tenant];
    if (held >= rules->max_sessions) return RefuseConnection(std::move(fd), peer, who, DenialReason::kTenantSessions);
    ++held;
  }
  const int64_t now_ns = clock_->MonotonicNs();
  Session* session = sessions_.Create(std::move(fd), std::move(evidence), std::move(who), now_ns);
  if (unidentified) unidentified_order_.push_back(session->id());
  const absl::Status watched =
      loop_->Add(session->socket(), EPOLLIN, [this, session](uint32_t events) { OnSessionEvent(session, events); });
  if (!watched.ok()) {
    session->Cut(CutReason::kSocketError);
    return EndSession(session);
  }
  session->watched_events = EPOLLIN;
  deadlines_.push_back({now_ns + int64_t{kAttachDeadlineMs} * kNsPerMs, session->id(), Deadline::For::kAttach});
}

// Connections that are always the tenant's own, and that it does not have.
size_t AttachServer::OwnSessionsLeft(const policy::TenantRules& rules) const {
  const size_t floor = std::min(kSessionsFloor, kSessionsMax / 2 / engine_->policy().tenants().size());
  const size_t its_own = std::min<size_t>(floor, rules.max_sessions);
  const auto held = sessions_by_tenant_.find(rules.name);
  return held == sessions_by_tenant_.end() ? its_own : its_own - std::min(its_own, held->second);
}

bool AttachServer::HasLessThanItsOwn(const std::string& tenant) const {
  const policy::TenantRules* const rules = tenant.empty() ? nullptr : engine_->policy().FindByName(tenant);
  return rules != nullptr && OwnSessionsLeft(*rules) > 0;
}

// Whether, with so many connections left, every other tenant can still come up to what is always its own. `tenant`: ""
// for somebody nobody is taken for.
bool AttachServer::LeavesOthersTheirs(const std::string& tenant, size_t left) const {
  const auto& tenants = engine_->policy().tenants();
  if (left >= kSessionsFloor * tenants.size() || HasLessThanItsOwn(tenant)) return true;
  size_t owed = 0;
  for (const policy::TenantRules& rules : tenants) {
    if (rules.name != tenant) owed += OwnSessionsLeft(rules);
  }
  return left >= owed;
}

void AttachServer::RefuseConnection(UniqueFd fd, const PeerCredentials& peer, const Attestation& who,
                                    DenialReason reason) {
  CountDenial(peer, who, reason);
  // A session of its own kind: it lives for this one answer.
  Session refused(SessionId::None(), std::move(fd), Evidence{peer, "", std::nullopt}, who, clock_->MonotonicNs());
  ++counters_.errors;
  if (reason == DenialReason::kStrangers) {
    refused.SendError(&codec_, 0, Code::DENIED, who.why);
  } else if (reason == DenialReason::kTenantSessions) {
    refused.SendError(&codec_, 0, Code::REFUSED, TenantIsFull(who.tenant), RefusalName(policy::Refusal::kTenantLimit));
  } else {
    refused.SendError(&codec_, 0, Code::REFUSED, NodeIsFull(), RefusalName(policy::Refusal::kQueueFull));
  }
  refused.DiscardUnread();
}

void AttachServer::OnSessionEvent(Session* session, uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0) session->FlushOutbox(&codec_);
  if ((epoll_events & ~EPOLLOUT) != 0) ReadFrames(session);
  if (session->alive()) {
    Watch(session);
  } else {
    EndSession(session);
  }
}

bool AttachServer::ReadFrames(Session* session) {
  // What is left is there in the next round: the loop tells of it again, after the others.
  const uint64_t enough = counters_.positions + kPositionsPerWakeMax;
  for (uint32_t i = 0; i < kFramesPerWakeMax && counters_.positions < enough; ++i) {
    if (!session->alive() || session->last_words == 0u) return true;
    size_t bytes = 0;
    BadFrame bad = BadFrame::kNone;
    switch (session->Receive(receive_buffer_, &bytes, &bad)) {
      case Session::Received::kFrame:
        if (session->last_words.has_value()) *session->last_words -= std::min(*session->last_words, bytes);
        HandleFrame(session, bytes);
        break;
      case Session::Received::kNothing:
        return true;
      case Session::Received::kEnd:
        if (bad != BadFrame::kNone) RejectFrame(session, bad);
        return true;
    }
  }
  return false;
}

void AttachServer::HandleFrame(Session* session, size_t bytes) {
  ++counters_.frames;
  const ParsedFrame parsed = codec_.Parse(std::span(receive_buffer_).first(bytes));
  if (parsed.bad != BadFrame::kNone) return RejectFrame(session, parsed.bad);
  if (session->group != nullptr) request_path_.GiveBack(session);
  if (parsed.bad_argument != nullptr) return request_path_.SendError(session, Code::BAD_ARGUMENT, parsed.bad_argument);
  switch (parsed.verb) {
    case Verb::kAttach:
      return HandleAttach(session);
    case Verb::kDetach:
      return session->Cut(CutReason::kDetached);
    case Verb::kGrantAck:
      session->grant_unacked = false;
      return;
    default:
      return HandleRequest(session, parsed.verb);
  }
}

void AttachServer::HandleRequest(Session* session, Verb verb) {
  if (session->group == nullptr) {
    return request_path_.SendError(session, Code::NOT_ATTACHED, "this session is not attached: send Attach first");
  }
  // A token says who somebody is. Where nobody asked for one, it says nothing.
  if (const std::string& token = codec_.frame().renew().token();
      verb == Verb::kRenew && !token.empty() && session->evidence().pod.has_value()) {
    if (!RenewIdentity(session, token)) return;
  }
  request_path_.Handle(session, verb);
}

void AttachServer::RejectFrame(Session* session, BadFrame bad) {
  ++counters_.bad_frames[static_cast<size_t>(bad)];
  ++counters_.errors;
  switch (bad) {
    case BadFrame::kUnknownVerb:
      return session->SendError(&codec_, codec_.frame().request_id(), Code::UNSUPPORTED,
                                "this daemon does not know the verb of this frame: it is older than the client");
    case BadFrame::kOversized:
      session->SendError(&codec_, 0, Code::BAD_FRAME,
                         absl::StrCat("the frame is longer than ", kFrameBytesMax, " bytes: split the request"));
      break;
    case BadFrame::kFds:
      session->SendError(&codec_, 0, Code::BAD_FRAME, "the frame carries file descriptors: clients never send any");
      break;
    case BadFrame::kTwoVerbs:
      session->SendError(&codec_, codec_.frame().request_id(), Code::BAD_FRAME,
                         "the frame has more than one verb: send one a frame");
      break;
    case BadFrame::kEmpty:
      session->SendError(&codec_, codec_.frame().request_id(), Code::BAD_FRAME, "the frame has no verb");
      break;
    case BadFrame::kGarbage:
    case BadFrame::kNone:
      session->SendError(&codec_, 0, Code::BAD_FRAME, "the frame is not a ClientFrame of attach.proto");
      break;
  }
  session->Cut(CutReason::kBadFrame);
}

void AttachServer::EndSession(Session* session) {
  const int64_t seen_ns = clock_->MonotonicNs();
  ++counters_.cuts[static_cast<size_t>(session->cut())];
  LogCut(*session);
  loop_->Remove(session->socket());
  if (session->peer_exit.valid()) loop_->Remove(session->peer_exit.get());
  if (session->who().denial != DenialReason::kNone) {
    UncountStranger(session->who().denial);
  } else if (auto held = sessions_by_tenant_.find(session->who().tenant); --held->second == 0) {
    sessions_by_tenant_.erase(held);
  }
  expiries_.erase({session->identity_until_ns(), session->id()});
  // Out of the tables first: answers the engine gives while it aborts find nobody to tell.
  const std::unique_ptr<Session> ended = sessions_.Remove(session->id());
  if (EngineGroup* group = ended->group; group != nullptr) {
    engine_->EndSession(ended->id());
    std::erase(group->sessions, ended.get());
    std::vector<EngineGroup::Fill> fills = group->FillsOf(ended->id());
    if (group->sessions.empty()) {
      EndGroup(group, seen_ns, ended->left());
    } else {
      request_path_.AbortFills(group, fills, ended->left());
    }
    // The kernel closes the socket of a process that is killed before it tells of its end.
    if (!ended->left()) late_writers_.Watch(std::move(ended->peer_exit), std::move(fills));
  }
  for (const uint32_t ns : ended->namespaces) engine_->CloseNamespace(NamespaceId(ns));
  ended->HangUp();
}

void AttachServer::EndGroup(EngineGroup* group, int64_t seen_ns, bool left) {
  std::unique_ptr<EngineGroup> ended = groups_.Remove(group->id);
  const size_t aborted = engine_->AbortGroup(ended->id, left ? kAllShards : 0);
  ended->leases.ReleaseAll();
  ended_groups_.push_back(std::move(ended));
  GiveBackOfEnded();
  ++counters_.reclaims;
  counters_.reclaimed_blocks += aborted;
  std::vector<uint32_t>& recent = counters_.recent_reclaim_us;
  if (recent.size() == kReclaimsKept) recent.erase(recent.begin());
  recent.push_back(static_cast<uint32_t>(std::min<int64_t>((clock_->MonotonicNs() - seen_ns) / 1000, UINT32_MAX)));
}

// What one of them leased may be a million blocks: some a turn, of each its part, and the living have theirs between.
// With too many of them the oldest is not spread out.
void AttachServer::GiveBackOfEnded() {
  const auto give_back = [this](LeaseTable& leases, uint32_t blocks_max) {
    return leases.GiveBack(blocks_max, [this](std::span<const engine::Hold> blocks) { engine_->Release(blocks); });
  };
  for (; ended_groups_.size() > kEndedGroupsMax; ended_groups_.pop_front())
    give_back(ended_groups_.front()->leases, UINT32_MAX);
  const size_t count = ended_groups_.size();
  for (size_t i = 0; i < count; ++i) {
    std::unique_ptr<EngineGroup> group = std::move(ended_groups_.front());
    ended_groups_.pop_front();
    give_back(group->leases, kGivenBackPerTurnMax / static_cast<uint32_t>(count));
    if (group->leases.owes()) ended_groups_.push_back(std::move(group));
  }
  if (!ended_groups_.empty()) PostSweep();
}

void AttachServer::Watch(Session* session) {
  const uint32_t wanted = EPOLLIN | (session->wants_to_write() ? EPOLLOUT : 0u);
  if (wanted == session->watched_events) return;
  if (loop_->Modify(session->socket(), wanted).ok()) session->watched_events = wanted;
}

// --- done later on the loop

void AttachServer::Touch(Session* session) {
  // Most answers leave at once and change nothing.
  if (session->alive() && session->wants_to_write() == ((session->watched_events & EPOLLOUT) != 0)) return;
  TouchLater(session);
}

void AttachServer::TouchLater(Session* session) {
  if (std::exchange(session->touched, true)) return;
  touched_.push_back(session->id());
  PostSweep();
}

void AttachServer::PostSweep() {
  if (sweep_posted_) return;
  sweep_posted_ = true;
  loop_->Post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Sweep();
  });
}

void AttachServer::Sweep() {
  sweep_posted_ = false;
  request_path_.AbortOrphans();
  request_path_.GiveBackOwed();
  GiveBackOfEnded();
  std::vector<SessionId> touched;
  touched.swap(touched_);
  for (const SessionId id : touched) {
    Session* session = sessions_.Find(id);
    if (session == nullptr) continue;
    session->touched = false;
    session->TellHeld(&codec_);
    if (session->alive()) {
      Watch(session);
    } else {
      EndSession(session);
    }
  }
}

void AttachServer::OnDurable(GroupId group_id, ReservationId reservation) {
  const EngineGroup* group = groups_.Find(group_id);
  if (group == nullptr) return;
  for (Session* session : group->sessions) {
    session->HoldDurable(reservation);
    TouchLater(session);
  }
}

// Its Commit hears from the engine that nothing is being filled.
void AttachServer::OnFillEnded(GroupId group_id, ReservationId reservation) {
  if (EngineGroup* group = groups_.Find(group_id); group != nullptr) group->filling.erase(reservation.value());
}

void AttachServer::OnDeletion(const engine::DeletionReceipt& receipt, absl::AnyInvocable<void(bool)> kept) {
  if (deletion_observer_) return deletion_observer_(receipt, std::move(kept));
  kept(true);
}

void AttachServer::OnGranted(DomainId domain, uint64_t offset, uint64_t bytes) {
  for (const auto& [id, group] : groups_.all()) {
    if (engine_->DomainOf(group->tenant) != domain) continue;
    for (Session* session : group->sessions) {
      session->HoldGranted({offset, bytes});
      TouchLater(session);
    }
  }
}

// --- time

void AttachServer::Tick() {
  for (const auto& listener : listeners_) listener->Resume();
  CheckDeadlines();
  EndExpired();
  ExpireLeases();
  late_writers_.Tick();
  denials_.Tick(clock_->MonotonicNs(), [this](const DoorEvent& event) { TellOfDoor(event); });
}

void AttachServer::CheckDeadlines() {
  const int64_t now_ns = clock_->MonotonicNs();
  while (!deadlines_.empty() && deadlines_.front().due_ns <= now_ns) {
    const Deadline due = deadlines_.front();
    deadlines_.pop_front();
    Session* session = sessions_.Find(due.session);
    if (session == nullptr) continue;
    if (due.what == Deadline::For::kAttach && session->group == nullptr) session->Cut(CutReason::kSilent);
    if (due.what == Deadline::For::kGrantAck && session->grant_unacked) session->Cut(CutReason::kUnacked);
    if (!session->alive()) EndSession(session);
  }
}

void AttachServer::ExpireLeases() {
  static_assert(kLeaseTickWorkMax >= kSessionsMax, "every group has a share of the work");
  if (groups_.size() == 0) return;
  const int64_t now_ns = clock_->MonotonicNs();
  uint32_t left = kLeaseTickWorkMax;
  const auto expire = [&](EngineGroup& group, uint32_t blocks_max) {
    counters_.leases_expired += group.leases.Expire(now_ns);
    left -=
        group.leases.GiveBack(blocks_max, [this](std::span<const engine::Hold> blocks) { engine_->Release(blocks); });
  };
  // Its share to each, then the rest to whoever needs it: the thousands of one group must not hold up another's few.
  const uint32_t share = kLeaseTickWorkMax / static_cast<uint32_t>(groups_.size());
  for (const auto& [id, group] : groups_.all()) expire(*group, share);
  for (const auto& [id, group] : groups_.all()) {
    if (left == 0) return;
    expire(*group, left);
  }
}

}  // namespace kvartal::attach
