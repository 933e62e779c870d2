// AttachServer's verbs that make and end sessions, and what it tells people. Connections and the loop are in
// attach_server.cc.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/attach/attach_server.h"
#include "daemon/attach/memory_grant.h"
#include "daemon/base/log.h"

namespace kvartal::attach {
namespace {

using Code = v1::Error;

constexpr uint32_t kProtocolVersion = 1;
constexpr int64_t kLogGapNs = 1'000'000'000;  // one line a reason a second: a storm must not fill the log
constexpr size_t kGroupHexBytes = 4;

// A client's own name for itself is for people and logs: nothing in it may end a line or draw on a terminal.
std::string Printable(const std::string& text) {
  std::string out = text;
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

bool LogNow(int64_t now_ns, int64_t* logged_ns) {
  if (*logged_ns != 0 && now_ns - *logged_ns < kLogGapNs) return false;
  *logged_ns = now_ns;
  return true;
}

}  // namespace

void AttachServer::HandleAttach(Session* session) {
  const v1::Attach& in = codec_.frame().attach();
  if (!MayAttach(session)) return;
  const TenantId tenant = engine_->FindTenant(session->who().tenant);
  if (!tenant.valid()) {
    request_path_.SendError(session, Code::DENIED,
                            absl::StrCat("tenant ", session->who().tenant, " has left the node's policy"));
    return session->Cut(CutReason::kPolicy);
  }
  const auto memory = engine_->OpenMemory(tenant);
  if (!memory.ok()) {
    const absl::string_view why = memory.status().message();
    engine_->NoteRefusal(tenant, policy::Refusal::kOutOfMemory);
    Log(LogLevel::kWarning, "attach", "tenant ", session->who().tenant, " gets no memory: ", why);
    return request_path_.SendError(session, Code::REFUSED, std::string_view(why.data(), why.size()),
                                   RefusalName(policy::Refusal::kOutOfMemory));
  }
  EngineGroup* group = JoinGroup(session, tenant, in);
  if (group == nullptr) return;
  session->group = group;
  session->tenant_uid = engine_->RulesOf(tenant)->uid;
  session->client = Printable(in.client());
  group->sessions.push_back(session);
  WatchPeerExit(session);
  TellOfSession(*session, CutReason::kNone);

  ServerFrame& reply = codec_.NewReply(codec_.frame().request_id());
  v1::Attached* out = reply.mutable_attached();
  out->set_version(kProtocolVersion);
  out->set_group(group->name);
  out->set_tenant(session->who().tenant);
  out->set_lease_ms(options_.lease_ms);
  out->set_arena_bytes(memory->arena_bytes);
  out->set_daemon_epoch(daemon_epoch_);
  out->set_identity_ms(session->IdentityMs(clock_->MonotonicNs()));
  session->Send(&codec_, reply);
  GrantMemory(session, *memory);
  // Some kernels give no pidfd of a process that is gone: whoever still holds its socket is nobody.
  if (!session->peer_exit.valid() && PeerHasExited(session->socket())) session->Cut(CutReason::kPeerExited);
}

bool AttachServer::MayAttach(Session* session) {
  const v1::Attach& in = codec_.frame().attach();
  if (session->group != nullptr) {
    request_path_.SendError(session, Code::BAD_ARGUMENT, "this session is attached already: one Attach a connection");
    return false;
  }
  if (tokens_.has_value() && !in.token().empty() && !IdentifyByToken(session, in.token())) return false;
  if (session->who().denial != DenialReason::kNone) {
    CountDenial(session->peer(), session->who(), session->who().denial);
    request_path_.SendError(session, Code::DENIED, session->who().why);
    session->Cut(CutReason::kDenied);
    return false;
  }
  if (in.version() != kProtocolVersion) {
    request_path_.SendError(
        session, Code::UNSUPPORTED,
        absl::StrCat("protocol version ", in.version(), " is not one this daemon has: it has ", kProtocolVersion));
    return false;
  }
  if (draining_) {
    CountDenial(session->peer(), session->who(), DenialReason::kDraining);
    request_path_.SendError(session, Code::REFUSED, "the daemon is draining: attach again after its restart",
                            RefusalName(policy::Refusal::kDraining));
    return false;
  }
  if (erasing_.contains(session->who().tenant)) {
    CountDenial(session->peer(), session->who(), DenialReason::kErasing);
    request_path_.SendError(
        session, Code::REFUSED,
        absl::StrCat("tenant ", session->who().tenant, " is being erased from this node: try again later"),
        RefusalName(policy::Refusal::kDraining));
    return false;
  }
  return true;
}

void AttachServer::TellOfSession(const Session& session, CutReason cut) const {
  const Attestation& who = session.who();
  const PeerCredentials& peer = session.peer();
  const std::string group = NameToHex(session.group->name, kGroupHexBytes);
  const auto& token = session.evidence().pod;
  const std::string pod = token.has_value() ? absl::StrCat(token->ns, "/", token->pod_name) : "";
  TellOfDoor({DenialReason::kNone, cut, who.tenant, who.attestor, peer.pid, peer.uid, session.client, group, "", pod});
}

EngineGroup* AttachServer::JoinGroup(Session* session, TenantId tenant, const v1::Attach& in) {
  if (in.group().empty()) return groups_.Create(RandomName(), tenant, session->who().attestor);
  EngineGroup* group = groups_.FindByName(in.group());
  if (group == nullptr && in.returning() && in.group().size() == kGroupNameBytes)
    return groups_.Create(in.group(), tenant, session->who().attestor);
  if (group == nullptr) {
    ++counters_.not_found;
    request_path_.SendError(session, Code::NOT_FOUND,
                            "there is no such engine group (any more): attach without a group to make one");
    return nullptr;
  }
  if (group->tenant != tenant || group->attestor != session->who().attestor) {
    CountDenial(session->peer(), session->who(), DenialReason::kForeignGroup);
    request_path_.SendError(session, Code::DENIED,
                            "this engine group is another tenant's, or was attested another way");
    session->Cut(CutReason::kDenied);
    return nullptr;
  }
  return group;
}

void AttachServer::GrantMemory(Session* session, const engine::DomainMemory& memory) {
  static_assert(kUnackedFdsMax >= 2, "the one grant with fds of a session has two");
  ServerFrame& frame = codec_.NewReply(0);
  OutgoingFds fds;
  const size_t told = FillFirstGrant(memory, frame.mutable_memory_grant(), &fds);
  session->Send(&codec_, frame, fds);
  session->grant_unacked = true;
  deadlines_.push_back(
      {clock_->MonotonicNs() + int64_t{kAttachDeadlineMs} * kNsPerMs, session->id(), Deadline::For::kGrantAck});
  for (size_t i = told; i < memory.granted.size(); ++i) session->HoldGranted(memory.granted[i]);
  session->TellHeld(&codec_);
}

void AttachServer::WatchPeerExit(Session* session) {
  // The kernel vouched for the process that connected. When that one is gone, whoever still holds its socket is nobody.
  session->peer_exit = OpenPeerPidfd(session->socket());
  if (!session->peer_exit.valid()) return;
  const absl::Status watched =
      loop_->Add(session->peer_exit.get(), EPOLLIN, [this, session](uint32_t) { OnPeerExit(session); });
  if (!watched.ok()) session->peer_exit.reset();
}

void AttachServer::OnPeerExit(Session* session) {
  // What it wrote before it went still counts, as with an EOF, be it more than one turn: the loop tells of the exit
  // again. But whoever goes on to write to its socket is nobody.
  if (!session->last_words.has_value()) session->last_words = session->UnreadBytes();
  if (!ReadFrames(session)) return;
  session->Cut(CutReason::kPeerExited);
  EndSession(session);
}

void AttachServer::SayGoodbye(Session* session, std::string_view reason) {
  ServerFrame& frame = codec_.NewReply(0);
  frame.mutable_goodbye()->set_reason(reason.data(), reason.size());
  session->Send(&codec_, frame);
}

void AttachServer::OnPolicyChanged() { EndUnvouched(); }

CutReason AttachServer::UnvouchedBy(const Session& session) const {
  const Attestation now = Attest(engine_->policy(), session.evidence(), attestors());
  // A stranger that the new policy vouches for connects again: an identity never changes.
  bool same = now.tenant == session.who().tenant && now.attestor == session.who().attestor;
  if (const auto& pod = session.evidence().pod; pod.has_value()) {
    if (tokens_->PodIsGone(*pod)) return CutReason::kPodGone;
    same = same && !tokens_->KeyIsGone(*pod);
  }
  // The same name is another tenant when its object was deleted and made anew: what this session holds is not its.
  if (same && session.group != nullptr) {
    same = engine_->policy().FindByName(now.tenant)->uid == session.tenant_uid;
  }
  return same ? CutReason::kNone : CutReason::kPolicy;
}

void AttachServer::EndUnvouched() {
  std::vector<std::pair<Session*, CutReason>> unvouched;
  for (const auto& [id, session] : sessions_.all()) {
    if (const CutReason why = UnvouchedBy(*session); why != CutReason::kNone) unvouched.push_back({session.get(), why});
  }
  for (const auto& [session, why] : unvouched) {
    SayGoodbye(session, why == CutReason::kPodGone
                            ? "the pod of this session is not on this node any more"
                            : "this peer is no longer taken for the tenant it was (policy or keys of the node have "
                              "changed): attach again");
    if (session->group != nullptr) TellOfSession(*session, why);
    session->Cut(why);
    EndSession(session);
  }
}

bool AttachServer::BeginDrop(const std::string& tenant) {
  if (!erasing_.insert(tenant).second) return false;
  EndTenant(tenant, "the tenant is being erased from this node: attach again later", CutReason::kErased);
  return true;
}

void AttachServer::EndDrop(const std::string& tenant) { erasing_.erase(tenant); }

void AttachServer::OnBegunAnew(const std::string& tenant) {
  EndTenant(tenant, "what the tenant had is being erased from this node: attach again", CutReason::kErased);
}

void AttachServer::EndTenant(const std::string& tenant, std::string_view reason, CutReason cut) {
  std::vector<Session*> ended;
  for (const auto& [id, session] : sessions_.all()) {
    // One that has not attached holds nothing, and is told when it tries.
    if (session->group != nullptr && session->who().tenant == tenant) ended.push_back(session.get());
  }
  for (Session* session : ended) {
    SayGoodbye(session, reason);
    session->Cut(cut);
    EndSession(session);
  }
}

void AttachServer::Drain() {
  draining_ = true;
  for (const auto& [id, session] : sessions_.all()) {
    SayGoodbye(session.get(), "the daemon is draining: it reads and no longer stores");
    Touch(session.get());
  }
}

void AttachServer::CountDenial(const PeerCredentials& peer, const Attestation& who, DenialReason reason) {
  ++counters_.denials[static_cast<size_t>(reason)];
  denials_.Note({reason, CutReason::kNone, who.tenant, who.attestor, peer.pid, peer.uid, "", "", who.why, ""},
                clock_->MonotonicNs(), [this](const DoorEvent& event) { TellOfDoor(event); });
  if (!LogNow(clock_->MonotonicNs(), &denial_logged_ns_[static_cast<size_t>(reason)])) return;
  Log(LogLevel::kWarning, "attach", "denied (", DenialReasonName(reason), "): uid ", peer.uid, " pid ", peer.pid,
      who.tenant.empty() ? "" : " tenant ", who.tenant, who.why.empty() ? "" : "; ", who.why);
}

void AttachServer::TellOfDoor(const DoorEvent& event) const {
  if (door_observer_) door_observer_(event);
}

void AttachServer::LogCut(const Session& session) {
  const CutReason reason = session.cut();
  const bool ordinary = reason == CutReason::kPeerClosed || reason == CutReason::kDetached ||
                        reason == CutReason::kStopped || reason == CutReason::kErased ||
                        reason == CutReason::kDenied;  // denials have their own line
  if (ordinary || !LogNow(clock_->MonotonicNs(), &cut_logged_ns_[static_cast<size_t>(reason)])) return;
  Log(LogLevel::kWarning, "attach", "cut off (", CutReasonName(reason), "): session ", session.id().value(),
      " tenant '", session.who().tenant, "' uid ", session.peer().uid, " pid ", session.peer().pid, " client '",
      session.client, "'");
}

std::string AttachServer::TenantIsFull(const std::string& tenant) {
  return absl::StrCat("tenant ", tenant,
                      " has as many sessions on this node as its policy allows: close some or raise sessions.max");
}

std::string AttachServer::NodeIsFull() {
  return absl::StrCat("this node may have ", kSessionsMax,
                      " sessions, and keeps the last ones for tenants with few: try again later");
}

AttachStats AttachServer::stats() const {
  AttachStats out = counters_;
  if (tokens_.has_value()) out.token_keys = tokens_->keys();
  out.sessions = sessions_.size();
  out.groups = groups_.size();
  for (const auto& listener : listeners_) out.accept_out_of_fds += listener->out_of_fds();
  const int64_t now_ns = clock_->MonotonicNs();
  for (const auto& [id, session] : sessions_.all()) {
    SessionInfo info;
    info.id = id.value();
    info.attestor = session->who().attestor;
    info.pid = session->peer().pid;
    info.uid = session->peer().uid;
    info.client = session->client;
    info.age_ms = static_cast<uint64_t>((now_ns - session->connected_ns()) / kNsPerMs);
    if (const EngineGroup* group = session->group; group != nullptr) {
      ++out.attached;
      info.tenant = session->who().tenant;
      info.group = NameToHex(group->name, kGroupHexBytes);
      info.leases = group->leases.leases();
      info.leased_blocks = group->leases.leased_blocks();
      info.filling_blocks = static_cast<uint32_t>(group->filling.size());
    }
    out.session_list.push_back(std::move(info));
  }
  std::sort(out.session_list.begin(), out.session_list.end(),
            [](const SessionInfo& a, const SessionInfo& b) { return a.id < b.id; });
  return out;
}

}  // namespace kvartal::attach
