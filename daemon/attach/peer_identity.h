// Who is at the door: what the kernel says about a peer, and which tenant the policy takes it for.
// Pure but for the two functions that ask the kernel.
// Invariant: the tenant is decided by door, uid and policy alone, never by what a client says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/attach/attach_stats.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::attach {

struct PeerCredentials {
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 0;  // of the process that called connect; 0 when it has no name here
};

struct Attestation {
  std::string tenant;    // empty when denied
  std::string attestor;  // "uid" | "socket": what vouched
  DenialReason denial = DenialReason::kNone;
  std::string why;  // for a denial: what was wrong and what to do
};

// SO_PEERCRED: as of connect, so a socket that is passed on keeps its identity.
absl::StatusOr<PeerCredentials> ReadPeerCredentials(int fd);
// SO_PEERPIDFD: readable when the peer's process is gone. Invalid where the kernel has none or the process ended
// already.
UniqueFd OpenPeerPidfd(int fd);

// `door` is "" for the shared door, else the name of the door the peer came through.
// An attestor is present when it has something to say: the socket attestor at a named door, the uid attestor where some
// policy claims the peer's uid. All present ones must name the same tenant. A uid that nobody claims does not speak
// against a door.
Attestation Attest(const policy::PolicyTable& policy, const PeerCredentials& peer, std::string_view door,
                   bool attest_uid);

}  // namespace kvartal::attach
