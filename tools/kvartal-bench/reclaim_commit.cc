#include "tools/kvartal-bench/reclaim_commit.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"

namespace kvartal::bench {
namespace {

constexpr time_t kAnswerSeconds = 10;
// Outcomes of attach.proto.
constexpr char kVisible = 0;
constexpr char kShardStored = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<RawSession>> RawSession::Attach(const std::string& socket_path,
                                                               const std::string& group) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", socket_path, " is too long: name a shorter one"));
  }
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  const timeval patience{kAnswerSeconds, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat("connect ", socket_path, ": ", std::strerror(errno)));
  }
  std::unique_ptr<RawSession> session(new RawSession(std::move(socket)));
  attach::v1::ClientFrame frame;
  frame.set_request_id(++session->last_request_);
  frame.mutable_attach()->set_version(1);
  frame.mutable_attach()->set_client("kvartal-bench reaper");
  frame.mutable_attach()->set_group(group);
  KV_RETURN_IF_ERROR(session->Send(frame));
  KV_ASSIGN_OR_RETURN(const attach::v1::ServerFrame answer, session->Answer(session->last_request_));
  if (answer.has_attached()) return session;
  return absl::PermissionDeniedError(absl::StrCat("attach refused: ", answer.error().message()));
}

absl::Status RawSession::Send(const attach::v1::ClientFrame& frame) {
  const std::string bytes = frame.SerializeAsString();
  if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("sending a raw frame: ", std::strerror(errno)));
}

absl::StatusOr<attach::v1::ServerFrame> RawSession::Answer(uint64_t request_id) {
  std::vector<char> buffer(kFrameBytesMax);
  for (;;) {
    // Without room for control messages the kernel closes the fds of a grant: no byte of memory is wanted here.
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::UnavailableError(
          absl::StrCat("no answer to a raw frame: ", got == 0 ? "the session was ended" : std::strerror(errno)));
    }
    attach::v1::ServerFrame frame;
    if (!frame.ParseFromArray(buffer.data(), static_cast<int>(got))) {
      return absl::InternalError("the daemon sent a frame that is none");
    }
    if (frame.memory_grant().has_fds()) {
      attach::v1::ClientFrame ack;
      ack.mutable_grant_ack();
      KV_RETURN_IF_ERROR(Send(ack));
    }
    if (frame.request_id() == request_id) return frame;
  }
}

absl::StatusOr<CommitTally> RawSession::Commit(std::span<const uint64_t> reservations) {
  CommitTally tally;
  while (!reservations.empty()) {
    const std::span<const uint64_t> part =
        reservations.first(std::min<size_t>(reservations.size(), kReservePerFrameMax));
    reservations = reservations.subspan(part.size());
    attach::v1::ClientFrame frame;
    frame.set_request_id(++last_request_);
    for (const uint64_t reservation : part) frame.mutable_commit()->add_reservations(reservation);
    KV_RETURN_IF_ERROR(Send(frame));
    KV_ASSIGN_OR_RETURN(const attach::v1::ServerFrame answer, Answer(last_request_));
    const std::string& outcomes = answer.committed().outcomes();
    if (!answer.has_committed() || outcomes.size() != part.size()) {
      return absl::InternalError(absl::StrCat("a commit of ", part.size(), " reservations was answered with ",
                                              outcomes.size(), " outcomes: ", answer.error().message()));
    }
    const auto accepted = static_cast<uint64_t>(std::count_if(
        outcomes.begin(), outcomes.end(), [](char outcome) { return outcome == kVisible || outcome == kShardStored; }));
    tally += {part.size(), accepted, part.size() - accepted};
  }
  return tally;
}

}  // namespace kvartal::bench
