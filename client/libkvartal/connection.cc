#include "client/libkvartal/connection.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

namespace kvartal::client {
namespace {

constexpr int kSendBufferBytes = 4 * static_cast<int>(kFrameBytesMax);

int CoresOfThisThread() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int64_t NowNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void SetTimeout(int fd, int option, uint32_t ms) {
  const timeval value{static_cast<time_t>(ms / 1000), static_cast<suseconds_t>(ms % 1000 * 1000)};
  ::setsockopt(fd, SOL_SOCKET, option, &value, sizeof(value));
}

bool IsSocket(const char* path) {
  struct stat found;
  return ::stat(path, &found) == 0 && S_ISSOCK(found.st_mode);
}

std::string ConnectAdvice(int error, const char* path) {
  switch (error) {
    case ENOENT:
      return " (is kvartald running, and is its run folder mounted here?)";
    case ECONNREFUSED:
      return IsSocket(path) ? " (the socket is there but kvartald is not)" : " (this is no socket)";
    case EACCES:
      return " (this user may not open the socket: check its mode and group)";
    case EPROTOTYPE:
      return " (not a socket for clients: kvartald's admin socket, for example, is for kvartalctl alone)";
    case EAGAIN:
      return " (kvartald does not accept connections)";
    default:
      return "";
  }
}

// Every fd in the message gets an owner, so that none is leaked whatever is decided later.
void TakeFds(msghdr* message, ReceivedFds* out) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (out->count < out->fds.size()) out->fds[out->count++] = std::move(owned);
    }
  }
}

}  // namespace

std::unique_ptr<Connection> Connection::Open(const std::string& path, const Deadline& deadline, std::string* error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    *error = std::string("cannot make a socket: ") + std::strerror(errno);
    return nullptr;
  }
  const uint32_t remaining_ms = deadline.RemainingMs();
  if (remaining_ms == 0) {
    *error = "the deadline passed before " + path + " could be tried";
    return nullptr;
  }
  // A full backlog makes connect wait for as long as a send may.
  SetTimeout(fd.get(), SO_SNDTIMEO, remaining_ms);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int code = errno;
    *error = "cannot connect to " + path + ": " + std::strerror(code) + ConnectAdvice(code, path.c_str());
    return nullptr;
  }
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
  return std::make_unique<Connection>(std::move(fd));
}

bool Connection::WaitFor(short events, const Deadline& deadline) {
  for (;;) {
    const uint32_t remaining_ms = deadline.RemainingMs();
    if (remaining_ms == 0) return false;
    pollfd poller{fd_.get(), events, 0};
    const int ready = ::poll(&poller, 1, static_cast<int>(remaining_ms));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows reports it
  }
}

IoResult Connection::Send(const char* data, size_t bytes, const Deadline* deadline) {
  for (;;) {
    if (::send(fd_.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return IoResult::kOk;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return IoResult::kClosed;
    if (deadline == nullptr || !WaitFor(POLLOUT, *deadline)) return IoResult::kTimedOut;
  }
}

bool Connection::MayBlock(const Deadline& deadline) {
  if (deadline.RemainingMs() != deadline.budget_ms()) return false;
  if (receive_timeout_ms_ != deadline.budget_ms()) {
    SetTimeout(fd_.get(), SO_RCVTIMEO, deadline.budget_ms());
    receive_timeout_ms_ = deadline.budget_ms();
  }
  return true;
}

void Connection::AwaitSoonAnswer() {
  // Where it has only one core, the daemon may be waiting for that very core.
  if (spins_++ % kSpinsPerCoreCount == 0) may_spin_ = CoresOfThisThread() > 1;
  if (!may_spin_) return;
  const int64_t end_ns = NowNs() + kAnswerSpinNs;
  char nothing;
  while (::recv(fd_.get(), &nothing, sizeof(nothing), MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {
    if (NowNs() >= end_ns) return;
    ::sched_yield();
  }
}

IoResult Connection::Receive(char* buffer, size_t* bytes, ReceivedFds* fds, const Deadline* deadline) {
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerFrameMax * sizeof(int))];
  // A budget of 0 never blocks: as a socket timeout 0 would mean "for ever".
  bool block = deadline != nullptr && deadline->budget_ms() > 0 && MayBlock(*deadline);
  if (block) AwaitSoonAnswer();
  bool reset_seen = false;
  for (;;) {
    iovec part{buffer, kFrameBytesMax};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | (block ? 0 : MSG_DONTWAIT));
    if (got >= 0) {
      TakeFds(&message, fds);
      if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return IoResult::kBadFrame;
      *bytes = static_cast<size_t>(got);
      return got == 0 ? IoResult::kClosed : IoResult::kOk;
    }
    if (errno == EINTR) {
      block = false;
      continue;
    }
    if (errno == ECONNRESET && !reset_seen) {
      // The kernel tells of a reset before it hands out what was queued: the daemon's reason may lie there.
      reset_seen = true;
      block = false;
      continue;
    }
    if (reset_seen || (errno != EAGAIN && errno != EWOULDBLOCK)) return IoResult::kClosed;
    if (deadline == nullptr || block || !WaitFor(POLLIN, *deadline)) return IoResult::kTimedOut;
  }
}

void Connection::Shutdown() { ::shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace kvartal::client
