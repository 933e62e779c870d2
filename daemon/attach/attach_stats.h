// Plain numbers of the door, copied out for metrics, the admin service and `kvartalctl`. No behaviour.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvartal::attach {

// Why a peer may not attach.
enum class DenialReason : uint8_t {
  kNone = 0,
  kUnknownUid,      // the shared door: no policy names this uid
  kUnknownDoor,     // a door whose name no policy lists
  kDisagreement,    // door and uid name different tenants
  kNoAttestor,      // the shared door with the uid attestor turned off
  kNoCredentials,   // the kernel did not tell who the peer is
  kForeignGroup,    // asked to join an engine group of another tenant, or attested another way
  kTenantSessions,  // the tenant's sessions are at their maximum
  kNodeSessions,    // the node's sessions are at their maximum
  kStrangers,       // too many peers nobody vouches for are connected already
  kDraining,        // the daemon is going down
  kErasing,         // the tenant is being erased
  // --- of tokens
  kNoToken,                // the shared door, where a token is what is asked for, and none came
  kTokenMalformed,         // not a ServiceAccount token
  kTokenAlgorithm,         // not the algorithm of the key it names
  kTokenUnknownKey,        // signed by a key this node does not know
  kTokenSignature,         // changed, or signed by somebody else
  kTokenIssuer,            // of another cluster
  kTokenAudience,          // meant for somebody else
  kTokenExpired,           // its time is over
  kTokenNotYetValid,       // its time has not begun
  kTokenNotPodBound,       // bound to no pod
  kForeignNode,            // of a pod on another node
  kPodGone,                // of a pod that was deleted
  kForeignPod,             // the kernel says that the peer is in another pod, or it renews with another pod's
  kPodUnproven,            // the kernel was to say which pod the peer is in, and said none, or several
  kPeerGone,               // it could not: the process that connected has ended, or hides itself
  kUnknownServiceAccount,  // no policy names it
};
inline constexpr size_t kDenialReasonCount = 28;

constexpr const char* DenialReasonName(DenialReason reason) {
  constexpr const char* kNames[kDenialReasonCount] = {"none",
                                                      "unknown_uid",
                                                      "unknown_door",
                                                      "disagreement",
                                                      "no_attestor",
                                                      "no_credentials",
                                                      "foreign_group",
                                                      "tenant_sessions",
                                                      "node_sessions",
                                                      "strangers",
                                                      "draining",
                                                      "erasing",
                                                      "no_token",
                                                      "token_malformed",
                                                      "token_algorithm",
                                                      "token_unknown_key",
                                                      "token_signature",
                                                      "token_issuer",
                                                      "token_audience",
                                                      "token_expired",
                                                      "token_not_yet_valid",
                                                      "token_not_pod_bound",
                                                      "foreign_node",
                                                      "pod_gone",
                                                      "foreign_pod",
                                                      "pod_unproven",
                                                      "peer_gone",
                                                      "unknown_service_account"};
  return kNames[static_cast<size_t>(reason)];
}

// Why a frame could not be understood. Every kind but kUnknownVerb ends the session.
enum class BadFrame : uint8_t {
  kNone = 0,
  kGarbage,      // not a ClientFrame
  kOversized,    // longer than kFrameBytesMax
  kTwoVerbs,     // more than one verb
  kEmpty,        // none at all
  kUnknownVerb,  // only fields this daemon does not know: a newer client
  kFds,          // carried file descriptors
};
inline constexpr size_t kBadFrameCount = 7;

constexpr const char* BadFrameName(BadFrame kind) {
  constexpr const char* kNames[kBadFrameCount] = {"none",  "garbage",      "oversized", "two_verbs",
                                                  "empty", "unknown_verb", "fds"};
  return kNames[static_cast<size_t>(kind)];
}

// Why a session ended.
enum class CutReason : uint8_t {
  kNone = 0,
  kPeerClosed,  // EOF, or the peer no longer takes answers
  kDetached,    // said Detach
  kPeerExited,  // the attested process is gone although something still holds its socket
  kBadFrame,
  kTooSlow,  // does not read
  kSilent,   // connected and said no Attach in time
  kUnacked,  // did not acknowledge the fds of its grant in time
  kDenied,
  kPolicy,  // the policy no longer names it, or names another tenant
  kSocketError,
  kStopped,  // the daemon goes down
  kErased,   // its tenant is being erased
  kExpired,  // the token it came with, and no newer one came
  kPodGone,  // the pod it came from was deleted
};
inline constexpr size_t kCutReasonCount = 15;

constexpr const char* CutReasonName(CutReason reason) {
  constexpr const char* kNames[kCutReasonCount] = {
      "none",   "peer_closed", "detached",     "peer_exited", "bad_frame", "too_slow", "silent",  "unacked",
      "denied", "policy",      "socket_error", "stopped",     "erased",    "expired",  "pod_gone"};
  return kNames[static_cast<size_t>(reason)];
}

// A process that attached, was refused, or is cut off since nothing vouches for it any more.
// Valid during the call that tells of it.
struct DoorEvent {
  DenialReason denial = DenialReason::kNone;
  CutReason cut = CutReason::kNone;
  std::string_view tenant;    // "" where nobody vouches for the process
  std::string_view attestor;  // "uid" | "socket" | "k8s-token"
  uint32_t pid = 0;
  uint32_t uid = 0;
  std::string_view client;  // its own name for itself
  std::string_view group;   // of a session: hex of its first bytes
  std::string_view why;     // of a denial
  std::string_view pod;     // "<namespace>/<name>" of a session by token
  uint64_t repeated = 0;    // of a denial: so many more of this kind since it was told; 0: this one
  bool various = false;     // of those: they were of several kinds, and whose is not told
};

struct SessionInfo {
  uint64_t id = 0;
  std::string tenant;    // "" before Attach
  std::string attestor;  // "uid" | "socket" | "k8s-token"
  uint32_t pid = 0;
  uint32_t uid = 0;
  std::string client;
  std::string group;  // hex of its first bytes
  uint64_t age_ms = 0;
  uint32_t leases = 0;  // these three are the whole group's
  uint32_t leased_blocks = 0;
  uint32_t filling_blocks = 0;
};

struct AttachStats {
  uint64_t sessions = 0;  // connections now, attached or not
  uint64_t attached = 0;
  uint64_t groups = 0;
  uint64_t accepted = 0;   // connections ever
  uint64_t frames = 0;     // from clients
  uint64_t positions = 0;  // blocks that these frames named, or that the leases they named have: what they cost
  uint64_t errors = 0;     // Error frames sent
  uint64_t not_found =
      0;  // leases, reservations and namespaces named that the group does not have (ended, or another's)
  uint64_t not_yours = 0;  // reservations of another group named
  uint64_t leases_expired = 0;
  uint64_t token_renewals = 0;
  uint64_t token_keys = 0;         // in the set that vouches for tokens now
  uint64_t accept_out_of_fds = 0;  // connections closed at once because the process had no fd left
  std::array<uint64_t, kDenialReasonCount> denials{};
  std::array<uint64_t, kBadFrameCount> bad_frames{};
  std::array<uint64_t, kCutReasonCount> cuts{};
  uint64_t reclaims = 0;                    // engine groups that ended
  uint64_t reclaimed_blocks = 0;            // unfinished blocks aborted by that
  std::vector<uint32_t> recent_reclaim_us;  // end seen to bytes charged back, newest last, at most kReclaimsKept
  std::vector<SessionInfo> session_list;
};

}  // namespace kvartal::attach
