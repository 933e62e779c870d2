#include "daemon/attach/token_attestor.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

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

TokenJudgement TokenAttestor::Judge(std::string_view token, const PeerPod& peer, int64_t now_wall_ms) const {
  const token::TokenExpectations expected = {issuer_, options_.audience, options_.node};
  token::TokenVerdict verdict = VerifyToken(token, keys_, expected, now_wall_ms);
  if (verdict.fault != token::TokenFault::kNone) return Refused(DenialOf(verdict.fault), std::move(verdict.why));
  const std::string& uid = verdict.claims.pod_uid;
  if (PodIsGone(verdict.claims))
    return Refused(DenialReason::kPodGone, absl::StrCat("pod ", uid, " is not on this node any more"));
  if (peer.silence == DenialReason::kPeerGone) {
    return Refused(peer.silence, absl::StrCat("the token is of pod ", uid,
                                              " and the kernel cannot be asked for the peer's: the process that "
                                              "connected has ended, or its /proc/PID/cgroup may not be read"));
  }
  if (peer.silence != DenialReason::kNone || (peer.uid.empty() && options_.host_pids)) {
    return Refused(DenialReason::kPodUnproven,
                   absl::StrCat("the token is of pod ", uid, " and the kernel does not say that the peer is in it"));
  }
  if (!peer.uid.empty() && peer.uid != uid) {
    return Refused(DenialReason::kForeignPod, absl::StrCat("the token is of pod ", uid,
                                                           " and the kernel says that the peer is in pod ", peer.uid));
  }
  TokenJudgement out;
  out.pod = std::move(verdict.claims);
  return out;
}

}  // namespace kvartal::attach
