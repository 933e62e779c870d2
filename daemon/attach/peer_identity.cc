#include "daemon/attach/peer_identity.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvartal::attach {
namespace {

#ifndef SO_PEERPIDFD
constexpr int SO_PEERPIDFD = 77;  // Linux 6.5; the headers may be older than the kernel
#endif

Attestation Denied(DenialReason reason, std::string why) {
  Attestation out;
  out.denial = reason;
  out.why = std::move(why);
  return out;
}

Attestation Vouched(const policy::TenantRules& rules, const char* attestor) {
  Attestation out;
  out.tenant = rules.name;
  out.attestor = attestor;
  return out;
}

}  // namespace

absl::StatusOr<PeerCredentials> ReadPeerCredentials(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return absl::ErrnoToStatus(errno, "asking the kernel for the peer of an attach socket (SO_PEERCRED)");
  }
  // An unnamed peer reads as uid -1: nobody may claim it.
  if (credentials.uid == static_cast<uid_t>(-1)) return absl::NotFoundError("the peer of an attach socket has no uid");
  return PeerCredentials{credentials.uid, credentials.gid, static_cast<uint32_t>(credentials.pid)};
}

UniqueFd OpenPeerPidfd(int fd) {
  int pidfd = -1;
  socklen_t length = sizeof(pidfd);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) != 0) return UniqueFd();
  return UniqueFd(pidfd);
}

Attestation Attest(const policy::PolicyTable& policy, const PeerCredentials& peer, std::string_view door,
                   bool attest_uid) {
  const policy::TenantRules* by_uid = attest_uid ? policy.FindByUid(peer.uid) : nullptr;
  if (door.empty()) {
    if (!attest_uid) {
      return Denied(DenialReason::kNoAttestor,
                    "this door attests nobody: the uid attestor is off; connect through a tenant's own socket");
    }
    if (by_uid == nullptr) {
      return Denied(DenialReason::kUnknownUid, absl::StrCat("no policy names uid ", peer.uid, ": add {uid: ", peer.uid,
                                                            "} to the subjects of a policy"));
    }
    return Vouched(*by_uid, "uid");
  }
  const absl::string_view door_name(door.data(), door.size());
  const policy::TenantRules* by_door = policy.FindBySocket(door);
  if (by_door == nullptr) {
    return Denied(DenialReason::kUnknownDoor, absl::StrCat("no policy names the door '", door_name, "': add {socket: ",
                                                           door_name, "} to the subjects of a policy"));
  }
  if (by_uid != nullptr && by_uid != by_door) {
    return Denied(DenialReason::kDisagreement,
                  absl::StrCat("the door '", door_name, "' is of tenant ", by_door->name, " and uid ", peer.uid,
                               " of another: connect through your own door"));
  }
  return Vouched(*by_door, "socket");
}

}  // namespace kvartal::attach
