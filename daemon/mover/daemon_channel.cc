#include "daemon/mover/daemon_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <span>

#include "absl/strings/str_cat.h"
#include "daemon/base/units.h"
#include "daemon/device/mover_limits.h"

namespace kvartal::mover {

using device::MoverAnswer;

absl::Status DaemonChannel::Check() const {
  int kind = 0;
  socklen_t length = sizeof(kind);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_TYPE, &kind, &length) == 0 && kind == SOCK_SEQPACKET) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("descriptor ", socket_.get(), " is no socket of kvartald's"));
}

absl::Status DaemonChannel::SayHello(bool simulated) {
  device::MoverHello hello;
  hello.simulated = simulated ? 1 : 0;
  return Send(&hello, sizeof(hello));
}

absl::StatusOr<std::optional<ReceivedRequest>> DaemonChannel::Receive() {
  ReceivedRequest received;
  iovec part{&received.request, sizeof(received.request)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got;
  do {
    got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == ENOMEM)) return std::nullopt;
  if (got <= 0) return absl::CancelledError("the daemon is gone");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    received.fd.reset(fd);
  }
  if (got != sizeof(received.request) || (message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a packet of ", got, " bytes is no request"));
  }
  return received;
}

void DaemonChannel::Answer(uint64_t operation, const absl::Status& status) {
  answers_.push_back(MoverAnswer::Of(operation, status));
}

absl::Status DaemonChannel::Flush() {
  for (size_t at = 0; at < answers_.size(); at += device::kMoverAnswersPerPacket) {
    const size_t count = std::min(answers_.size() - at, device::kMoverAnswersPerPacket);
    KV_RETURN_IF_ERROR(Send(&answers_[at], count * sizeof(MoverAnswer)));
  }
  answers_.clear();
  return absl::OkStatus();
}

void DaemonChannel::Wait(int64_t microseconds) const {
  pollfd watched{socket_.get(), POLLIN, 0};
  const timespec limit{0, microseconds * 1000};
  ::ppoll(&watched, 1, microseconds < 0 ? nullptr : &limit, nullptr);
}

absl::Status DaemonChannel::Send(const void* bytes, size_t length) {
  while (::send(socket_.get(), bytes, length, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return absl::CancelledError("the daemon is gone");
  }
  return absl::OkStatus();
}

}  // namespace kvartal::mover
