// The k8s-token attestor: whether a token is to be believed now, from this peer.
// Confined to the engine loop.
// Invariants: without keys nobody is believed; a token is refused wherever the kernel was asked for the peer's pod and
// said another, or could not say; what it answers holds no word of a token that was not verified.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "daemon/attach/attach_stats.h"
#include "daemon/token/key_set.h"
#include "daemon/token/pod_token.h"

namespace kvartal::attach {

struct TokenOptions {
  std::string audience;
  std::string node;  // as the API server knows it
  // The daemon sees the pids of the host, so that the kernel names the pod of every peer: one without a pid here, or
  // outside of pods, is refused. Otherwise the pod of a peer counts where its pid is seen.
  bool host_pids = false;
};

// What the kernel says of the pod a peer is in.
struct PeerPod {
  std::string uid;  // "": it is outside of pods, or its pid is not seen here
  // Why a pid that is seen says nothing: kPodUnproven (it names several pods) or kPeerGone.
  DenialReason silence = DenialReason::kNone;
};

struct TokenJudgement {
  DenialReason denial = DenialReason::kNone;
  std::string why;
  token::PodClaims pod;  // meaningful without a denial only
};

class TokenAttestor {
 public:
  explicit TokenAttestor(TokenOptions options) : options_(std::move(options)) {}

  // Takes the place of the set before.
  void SetKeys(const std::string& issuer, token::KeySet keys) {
    issuer_ = issuer;
    keys_ = std::move(keys);
  }
  // UIDs of the pods that were on this node and are not any more, which a token cannot tell. Takes the place of those
  // before. A pod that is not among them is believed by its token: it may be newer than all that is known of pods.
  void SetGonePods(const std::vector<std::string>& uids) { gone_pods_ = {uids.begin(), uids.end()}; }

  TokenJudgement Judge(std::string_view token, const PeerPod& peer, int64_t now_wall_ms) const;
  // Of a token that was verified.
  bool KeyIsGone(const token::PodClaims& pod) const { return keys_.Find(pod.kid) == nullptr; }
  bool PodIsGone(const token::PodClaims& pod) const { return gone_pods_.contains(pod.pod_uid); }
  size_t keys() const { return keys_.size(); }

 private:
  const TokenOptions options_;
  std::string issuer_;
  token::KeySet keys_;
  absl::flat_hash_set<std::string> gone_pods_;
};

}  // namespace kvartal::attach
