#include "daemon/attach/token_attestor.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

DenialReason DenialOf(token::TokenFault fault) {
  constexpr std::array<DenialReason, token::kTokenFaultCount> kDenials = {DenialReason::kNone,
                                                                          DenialReason::kTokenMalformed,
                                                                          DenialReason::kTokenAlgorithm,
                                                                          DenialReason::kTokenUnknownKey,
                                                                          DenialReason::kTokenSignature,
                                                                          DenialReason::kTokenIssuer,
                                                                          DenialReason::kTokenAudience,
                                                                          DenialReason::kTokenExpired,
                                                                          DenialReason::kTokenNotYetValid,
                                                                          DenialReason::kTokenNotPodBound,
                                                                          DenialReason::kForeignNode};
  return kDenials[static_cast<size_t>(fault)];
}

TokenJudgement Refused(DenialReason reason, std::string why) {
  TokenJudgement out;
  out.denial = reason;
  out.why = std::move(why);
  return out;
}

}  // namespace

void TokenAttestor::SetPods(const std::vector<std::string>& uids) {
  absl::flat_hash_set<std::string> now(uids.begin(), uids.end());
  for (const std::string& pod : pods_) {
    if (now.contains(pod) || !gone_.insert(pod).second) continue;
    gone_order_.push_back(pod);
    if (gone_order_.size() <= kGonePodsMax) continue;
    gone_.erase(gone_order_.front());
    gone_order_.pop_front();
  }
  pods_ = std::move(now);
}

TokenJudgement TokenAttestor::Judge(std::string_view token, const std::optional<std::string>& peer_pod,
                                    int64_t now_wall_ms) const {
  const token::TokenExpectations expected = {issuer_, options_.audience, options_.node};
  token::TokenVerdict verdict = VerifyToken(token, keys_, expected, now_wall_ms);
  if (verdict.fault != token::TokenFault::kNone) return Refused(DenialOf(verdict.fault), std::move(verdict.why));
  const std::string& uid = verdict.claims.pod_uid;
  if (gone_.contains(uid)) return Refused(DenialReason::kPodGone, absl::StrCat("pod ", uid, " was deleted"));
  if (!peer_pod.has_value() || (peer_pod->empty() && options_.host_pids)) {
    return Refused(DenialReason::kPodUnproven,
                   absl::StrCat("the token is of pod ", uid, " and the kernel does not say that the peer is in it"));
  }
  if (!peer_pod->empty() && *peer_pod != uid) {
    return Refused(DenialReason::kForeignPod, absl::StrCat("the token is of pod ", uid,
                                                           " and the kernel says that the peer is in pod ", *peer_pod));
  }
  TokenJudgement out;
  out.pod = std::move(verdict.claims);
  return out;
}

bool TokenAttestor::StillVouchesFor(const token::PodClaims& pod) const {
  return keys_.Find(pod.kid) != nullptr && !gone_.contains(pod.pod_uid);
}

}  // namespace kvartal::attach
