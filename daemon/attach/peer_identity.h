// Who is at the door: what the kernel says about a peer, and which tenant the policy takes it for.
// Pure but for the two functions that ask the kernel.
// Invariant: the tenant is decided by door, uid, verified token and policy alone, never by what a client says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/attach/attach_stats.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/policy/policy_table.h"
#include "daemon/token/pod_token.h"

namespace kvartal::attach {

struct PeerCredentials {
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 0;  // of the process that called connect; 0 when it has no name here
};

// All there is to judge a peer by.
struct Evidence {
  PeerCredentials peer;
  std::string door;                     // "" for the shared door, else the name of the door the peer came through
  std::optional<token::PodClaims> pod;  // by a token that was verified
};

// Which attestors a node has, beside its doors.
struct Attestors {
  bool uid = true;
  bool token = false;
};

struct Attestation {
  std::string tenant;    // empty when denied
  std::string attestor;  // "uid" | "socket" | "k8s-token": the strongest that vouched
  DenialReason denial = DenialReason::kNone;
  std::string why;  // for a denial: what was wrong and what to do
};

// SO_PEERCRED: as of connect, so a socket that is passed on keeps its identity.
absl::StatusOr<PeerCredentials> ReadPeerCredentials(int fd);
// SO_PEERPIDFD: readable when the peer's process is gone. Invalid where the kernel has none or the process ended
// already.
UniqueFd OpenPeerPidfd(int fd);

// Whether the peer's process has ended, or may have: what /proc says of its pid is another process's then. Not known,
// and false, where the kernel has no SO_PEERPIDFD.
bool PeerHasExited(int fd);

// An attestor is present when it has something to say: the socket attestor at a named door, the k8s-token attestor for
// a token that was verified, the uid attestor where some policy claims the peer's uid. All present ones must name the
// same tenant. A uid that nobody claims does not speak against a door or a token.
Attestation Attest(const policy::PolicyTable& policy, const Evidence& evidence, const Attestors& attestors);

}  // namespace kvartal::attach
