// Which node a stream is of: its token has to be that of a daemon's pod, whose node the API server vouches for.
// Confined to the operator's loop.
// Invariant: without keys nobody is any node.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "daemon/base/status.h"
#include "daemon/token/key_set.h"
#include "daemon/token/pod_token.h"

namespace kvartal::process {

struct NodeAttestorOptions {
  std::string account;   // "namespace/name" of the daemons' ServiceAccount
  std::string audience;  // for which their tokens are issued
};

class NodeAttestor {
 public:
  explicit NodeAttestor(NodeAttestorOptions options) : options_(std::move(options)) {}

  // A key set that is bad changes nothing.
  void SetKeys(const std::string& issuer, const std::string& jwks);
  // The node's name. PermissionDenied: why not, without a word of the token. Unavailable: the keys are not known yet.
  absl::StatusOr<std::string> NodeOf(std::string_view token, int64_t now_wall_ms) const;

 private:
  const NodeAttestorOptions options_;
  std::string issuer_;
  token::KeySet keys_;
};

}  // namespace kvartal::process
