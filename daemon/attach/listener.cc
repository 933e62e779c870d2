#include "daemon/attach/listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::attach {
namespace {

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the attach socket path '", path, "' has ", path.size(),
                                                   " characters: a Unix socket path has 1 to ",
                                                   sizeof(address.sun_path) - 1, "; choose a shorter one"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd NewSocket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// OK when the path is free, or holds a socket nobody listens on: then it is removed.
absl::Status ClearPath(const std::string& path, const sockaddr_un& address) {
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : absl::ErrnoToStatus(errno, absl::StrCat("looking at ", path));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket: move it away or choose another attach socket path"));
  }
  UniqueFd probe = NewSocket();
  if (!probe.valid()) return absl::ErrnoToStatus(errno, "socket");
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    if (error == ENOENT) return absl::OkStatus();
    if (error == ECONNREFUSED) {
      if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return absl::ErrnoToStatus(errno, absl::StrCat("removing the stale socket ", path));
      }
      return absl::OkStatus();
    }
    // EAGAIN: its queue is full, so somebody listens; EPROTOTYPE: somebody, with another kind of socket.
    if (error != EAGAIN && error != EPROTOTYPE) {
      return absl::ErrnoToStatus(error, absl::StrCat("asking whether somebody listens on ", path));
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("another daemon answers on ", path, ": stop it or choose another attach socket path"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const Door& door, EventLoop* loop, OnAccepted on_accepted) {
  KV_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(door.path));
  KV_RETURN_IF_ERROR(ClearPath(door.path, address));
  UniqueFd socket = NewSocket();
  if (!socket.valid()) return absl::ErrnoToStatus(errno, "socket");
  // The file is made with the mode of the socket, so nobody can connect before the mode is what was asked for.
  if (::fchmod(socket.get(), 0600) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("binding the attach socket ", door.path));
  }
  std::unique_ptr<Listener> listener(new Listener(door, loop, std::move(on_accepted), std::move(socket)));
  struct stat made{};
  if (::lstat(door.path.c_str(), &made) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("looking at ", door.path));
  listener->device_ = made.st_dev;
  listener->inode_ = made.st_ino;
  if (::listen(listener->socket_.get(), SOMAXCONN) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("listening on ", door.path));
  }
  if (::chmod(door.path.c_str(), door.mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("setting the mode of ", door.path));
  }
  Listener* raw = listener.get();
  KV_RETURN_IF_ERROR(loop->Add(raw->socket_.get(), EPOLLIN, [raw](uint32_t) { raw->AcceptSome(); }));
  return listener;
}

Listener::Listener(const Door& door, EventLoop* loop, OnAccepted on_accepted, UniqueFd socket)
    : door_(door),
      loop_(loop),
      on_accepted_(std::move(on_accepted)),
      socket_(std::move(socket)),
      spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

Listener::~Listener() {
  loop_->Remove(socket_.get());
  struct stat found{};
  if (inode_ != 0 && ::lstat(door_.path.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_) {
    ::unlink(door_.path.c_str());
  }
}

void Listener::Resume() {
  if (!resting_) return;
  if (!spare_.valid()) spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  resting_ = !loop_->Modify(socket_.get(), EPOLLIN).ok();
}

void Listener::AcceptSome() {
  for (uint32_t i = 0; i < kAcceptsPerWakeMax; ++i) {
    UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted.valid()) {
      on_accepted_(std::move(accepted), door_);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    if (errno == EMFILE || errno == ENFILE) {
      if (out_of_fds_++ == 0) {
        Log(LogLevel::kError, "attach", "no file descriptor left for connections on ", door_.path,
            ": raise the limit (nofile)");
      }
      if (TurnOneAway()) continue;
    }
    // Nothing can be taken in now, and the socket stays readable: rest instead of spinning.
    resting_ = loop_->Modify(socket_.get(), 0).ok();
    return;
  }
}

bool Listener::TurnOneAway() {
  if (!spare_.valid()) return false;
  spare_.reset();
  UniqueFd refused(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const bool accepted = refused.valid();
  refused.reset();
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return accepted;
}

}  // namespace kvartal::attach
