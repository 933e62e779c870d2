// AttachServer's part about tokens of pods: who comes with one, who renews it, and whose time is over.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/attach/attach_server.h"
#include "daemon/attach/pod_cgroup.h"
#include "daemon/base/check.h"
#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

using Code = v1::Error;

constexpr int64_t kMsPerSecond = 1000;

}  // namespace

void AttachServer::SetTokenKeys(const std::string& issuer, token::KeySet keys) {
  if (!tokens_.has_value()) return;
  tokens_->SetKeys(issuer, std::move(keys));
  EndUnvouched();
}

void AttachServer::SetGonePods(const std::vector<std::string>& uids) {
  if (!tokens_.has_value()) return;
  tokens_->SetGonePods(uids);
  EndUnvouched();
}

TokenJudgement AttachServer::JudgeToken(const Session& session, std::string_view token) const {
  PeerPod peer;
  if (const uint32_t pid = session.peer().pid; pid != 0) {
    const std::string cgroup = options_.read_cgroup(pid);
    const std::optional<std::string> pod = PodOfCgroup(cgroup);
    if (pod.has_value()) peer.uid = *pod;
    if (!pod.has_value()) peer.silence = DenialReason::kPodUnproven;
    // Read first, asked then: a process that was there until now had the pid to itself. Who has left its socket to
    // another process is in no pod that could be told.
    if (cgroup.empty() || PeerHasExited(session.socket())) peer.silence = DenialReason::kPeerGone;
  }
  return tokens_->Judge(token, peer, clock_->WallMs());
}

int64_t AttachServer::ExpiryOf(const token::PodClaims& pod) const {
  // On the clock that nobody sets: a wall clock put back makes no token live longer.
  const int64_t left_ms = std::clamp<int64_t>(pod.expires_wall_ms - clock_->WallMs(), 0, kSecondsMax * kMsPerSecond);
  return clock_->MonotonicNs() + left_ms * kNsPerMs;
}

void AttachServer::Deny(Session* session, DenialReason reason, const std::string& why) {
  Attestation refused = session->who();
  refused.denial = reason;
  refused.why = why;
  CountDenial(session->peer(), refused, reason);
  request_path_.SendError(session, Code::DENIED, why);
}

bool AttachServer::IdentifyByToken(Session* session, const std::string& token) {
  // An Attach that was refused for something else may come again, with a newer token at most.
  if (session->evidence().pod.has_value()) return RenewIdentity(session, token);
  const DenialReason before = session->who().denial;
  // Whoever was refused for another reason than the want of a token is told that reason.
  if (before != DenialReason::kNone && before != DenialReason::kNoToken) return true;
  TokenJudgement judged = JudgeToken(*session, token);
  if (judged.denial != DenialReason::kNone) {
    Deny(session, judged.denial, judged.why);
    session->Cut(CutReason::kDenied);
    return false;
  }
  Evidence evidence = session->evidence();
  evidence.pod = judged.pod;
  Attestation who = Attest(engine_->policy(), evidence, attestors());
  if (who.denial != DenialReason::kNone) {
    Deny(session, who.denial, who.why);
    session->Cut(CutReason::kDenied);
    return false;
  }
  if (before != DenialReason::kNone) {
    // From here on it counts for its tenant.
    const policy::TenantRules* rules = engine_->policy().FindByName(who.tenant);
    if (sessions_by_tenant_[who.tenant] >= rules->max_sessions) {
      CountDenial(session->peer(), who, DenialReason::kTenantSessions);
      request_path_.SendError(session, Code::REFUSED, TenantIsFull(who.tenant),
                              RefusalName(policy::Refusal::kTenantLimit));
      session->Cut(CutReason::kDenied);
      return false;
    }
    if (!LeavesOthersTheirs(who.tenant, kSessionsMax - sessions_.size())) {
      CountDenial(session->peer(), who, DenialReason::kNodeSessions);
      request_path_.SendError(session, Code::REFUSED, NodeIsFull(), RefusalName(policy::Refusal::kQueueFull));
      session->Cut(CutReason::kDenied);
      return false;
    }
    ++sessions_by_tenant_[who.tenant];
    UncountStranger(before);
  }
  const int64_t until_ns = ExpiryOf(judged.pod);
  session->Identify(std::move(judged.pod), std::move(who), until_ns);
  expiries_.emplace(until_ns, session->id());
  return true;
}

bool AttachServer::RenewIdentity(Session* session, const std::string& token) {
  const token::PodClaims& before = *session->evidence().pod;
  TokenJudgement judged = JudgeToken(*session, token);
  if (judged.denial == DenialReason::kNone && (judged.pod.pod_uid != before.pod_uid || judged.pod.ns != before.ns ||
                                               judged.pod.service_account != before.service_account)) {
    judged.denial = DenialReason::kForeignPod;
    judged.why = "the token is of another pod than the one this session began with";
  }
  if (judged.denial != DenialReason::kNone) {
    Deny(session, judged.denial, judged.why);
    return false;
  }
  ++counters_.token_renewals;
  const int64_t until_ns = ExpiryOf(judged.pod);
  // The same or an older one takes nothing away.
  if (until_ns <= session->identity_until_ns()) return true;
  expiries_.erase({session->identity_until_ns(), session->id()});
  session->Identify(std::move(judged.pod), session->who(), until_ns);
  expiries_.emplace(until_ns, session->id());
  return true;
}

void AttachServer::EndExpired() {
  const int64_t now_ns = clock_->MonotonicNs();
  while (!expiries_.empty() && expiries_.begin()->first <= now_ns) {
    Session* session = sessions_.Find(expiries_.begin()->second);
    KV_CHECK(session != nullptr);
    SayGoodbye(session, "the token of this session has expired: attach again with a newer one");
    session->Cut(CutReason::kExpired);
    EndSession(session);
  }
}

void AttachServer::CutSilent() {
  while (unidentified_ >= kUnidentifiedMax || (unidentified_ > 0 && sessions_.size() >= kSessionsMax)) {
    KV_CHECK(!unidentified_order_.empty());
    Session* oldest = sessions_.Find(unidentified_order_.front());
    unidentified_order_.pop_front();
    if (oldest == nullptr || oldest->who().denial != DenialReason::kNoToken) continue;
    oldest->Cut(CutReason::kSilent);
    EndSession(oldest);
  }
  // Whoever has told or gone since need not be kept in mind.
  while (!unidentified_order_.empty()) {
    const Session* oldest = sessions_.Find(unidentified_order_.front());
    if (oldest != nullptr && oldest->who().denial == DenialReason::kNoToken) return;
    unidentified_order_.pop_front();
  }
}

}  // namespace kvartal::attach
