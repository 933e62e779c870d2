#include "daemon/attach/outbox.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "daemon/base/limits.h"

namespace kvartal::attach {
namespace {

Outbox::Outcome SendNow(int socket, const void* bytes, size_t length, const OutgoingFds& fds) {
  iovec part{const_cast<void*>(bytes), length};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds.fds))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fds.count > 0) {
    const size_t fd_bytes = static_cast<size_t>(fds.count) * sizeof(int);
    std::memset(control, 0, sizeof(control));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_bytes);
    std::memcpy(CMSG_DATA(header), fds.fds, fd_bytes);
  }
  while (true) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Outbox::Outcome::kSent;
    if (errno == EINTR) continue;
    // ENOBUFS and ENOMEM pass, like a full socket; ETOOMANYREFS (fds in flight of the whole process) does not while
    // others stall, so that session is given up.
    if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) return Outbox::Outcome::kQueued;
    return Outbox::Outcome::kBroken;
  }
}

}  // namespace

Outbox::Outcome Outbox::Send(int socket, std::span<const std::byte> frame, const OutgoingFds& fds) {
  if (waiting_.empty()) {
    const Outcome outcome = SendNow(socket, frame.data(), frame.size(), fds);
    if (outcome != Outcome::kQueued) return outcome;
  }
  if (waiting_.size() >= kOutboxFramesMax || waiting_bytes_ + frame.size() > kOutboxBytesMax) return Outcome::kFull;
  waiting_.push_back({std::string(reinterpret_cast<const char*>(frame.data()), frame.size()), fds});
  waiting_bytes_ += frame.size();
  return Outcome::kQueued;
}

Outbox::Outcome Outbox::Flush(int socket) {
  while (!waiting_.empty()) {
    const Waiting& next = waiting_.front();
    const Outcome outcome = SendNow(socket, next.bytes.data(), next.bytes.size(), next.fds);
    if (outcome != Outcome::kSent) return outcome;
    waiting_bytes_ -= next.bytes.size();
    waiting_.pop_front();
  }
  return Outcome::kSent;
}

}  // namespace kvartal::attach
