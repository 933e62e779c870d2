// The k8s-token attestor: whether a token is to be believed now, from this peer.
// Confined to the engine loop.
// Invariants: without keys nobody is believed; a token is refused wherever the kernel was asked for the peer's pod and
// said another, or could not say; what it answers holds no word of a token that was not verified.
#pragma once

#include <deque>
#include <optional>
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
  // UIDs of the pods that are on this node now. What was there before and is not any more was deleted: a token cannot
  // tell. A pod that was never there may be newer than the list.
  void SetPods(const std::vector<std::string>& uids);

  // `peer_pod`: the UID of the pod the kernel says the peer is in; "" for a peer outside of pods, or whose pid is not
  // seen here; none for one whose pid is seen and that hides: its process has ended, or its cgroup does not tell.
  TokenJudgement Judge(std::string_view token, const std::optional<std::string>& peer_pod, int64_t now_wall_ms) const;
  // False when the key or the pod of a token that was verified is gone.
  bool StillVouchesFor(const token::PodClaims& pod) const;
  size_t keys() const { return keys_.size(); }

 private:
  const TokenOptions options_;
  std::string issuer_;
  token::KeySet keys_;
  absl::flat_hash_set<std::string> pods_;
  absl::flat_hash_set<std::string> gone_;
  std::deque<std::string> gone_order_;  // the same, oldest first
};

}  // namespace kvartal::attach
