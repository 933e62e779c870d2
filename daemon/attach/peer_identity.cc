#include "daemon/attach/peer_identity.h"

#include <poll.h>
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

// Whom each attestor that is present takes the peer for.
struct Voices {
  const policy::TenantRules* by_token = nullptr;
  const policy::TenantRules* by_door = nullptr;
  const policy::TenantRules* by_uid = nullptr;
};

Attestation NobodyVouches(uint32_t uid, const Attestors& attestors) {
  if (attestors.token) {
    return Denied(DenialReason::kNoToken,
                  absl::StrCat("no ServiceAccount token came and no policy names uid ", uid,
                               ": project a token into the pod and name its file in KVARTAL_TOKEN_FILE"));
  }
  if (!attestors.uid) {
    return Denied(DenialReason::kNoAttestor,
                  "this door attests nobody: the uid attestor is off; connect through a tenant's own socket");
  }
  return Denied(DenialReason::kUnknownUid,
                absl::StrCat("no policy names uid ", uid, ": add {uid: ", uid, "} to the subjects of a policy"));
}

// All that speak must say the same.
Attestation Hear(const Voices& voices, const Evidence& evidence, const Attestors& attestors) {
  const policy::TenantRules* strongest = nullptr;
  const char* attestor = nullptr;
  std::string said;
  const auto hear = [&](const policy::TenantRules* rules, const char* name, const std::string& who) {
    if (rules == nullptr) return true;
    absl::StrAppend(&said, said.empty() ? "" : ", ", who, " is of tenant ", rules->name);
    if (strongest == nullptr) {
      strongest = rules;
      attestor = name;
    }
    return rules == strongest;
  };
  const auto& pod = evidence.pod;
  const bool agreed =
      hear(voices.by_token, "k8s-token", pod ? absl::StrCat("the pod ", pod->ns, "/", pod->pod_name) : "") &&
      hear(voices.by_door, "socket", absl::StrCat("the door '", evidence.door, "'")) &&
      hear(voices.by_uid, "uid", absl::StrCat("uid ", evidence.peer.uid));
  if (!agreed) return Denied(DenialReason::kDisagreement, absl::StrCat(said, ": all that vouch must agree"));
  return strongest == nullptr ? NobodyVouches(evidence.peer.uid, attestors) : Vouched(*strongest, attestor);
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

bool PeerHasExited(int fd) {
  errno = 0;
  const UniqueFd pidfd = OpenPeerPidfd(fd);
  // Of a process that is gone some kernels give none.
  if (!pidfd.valid()) return errno != ENOPROTOOPT;
  pollfd watch{pidfd.get(), POLLIN, 0};
  return ::poll(&watch, 1, 0) != 0;
}

Attestation Attest(const policy::PolicyTable& policy, const Evidence& evidence, const Attestors& attestors) {
  const uint32_t uid = evidence.peer.uid;
  Voices voices;
  if (attestors.uid) voices.by_uid = policy.FindByUid(uid);
  if (!evidence.door.empty()) {
    voices.by_door = policy.FindBySocket(evidence.door);
    if (voices.by_door == nullptr) {
      return Denied(DenialReason::kUnknownDoor,
                    absl::StrCat("no policy names the door '", evidence.door, "': add {socket: ", evidence.door,
                                 "} to the subjects of a policy"));
    }
  }
  if (const auto& pod = evidence.pod; pod.has_value()) {
    voices.by_token = policy.FindByServiceAccount(pod->ns, pod->service_account);
    if (voices.by_token == nullptr) {
      return Denied(
          DenialReason::kUnknownServiceAccount,
          absl::StrCat("no policy of namespace ", pod->ns, " names the service account ", pod->service_account,
                       ": add {serviceAccountName: ", pod->service_account, "} to the subjects of one"));
    }
  }
  return Hear(voices, evidence, attestors);
}

}  // namespace kvartal::attach
