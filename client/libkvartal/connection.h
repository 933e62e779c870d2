// One SOCK_SEQPACKET connection: whole frames out, whole frames and their fds in, each with a deadline.
// Send: any thread. Receive: one thread at a time (Session sees to it).
// Invariants: SIGPIPE is never raised; no fd that arrives is leaked or survives an exec.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "client/libkvartal/client_limits.h"
#include "client/libkvartal/deadline.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::client {

enum class IoResult : uint8_t {
  kOk,
  kTimedOut,
  kClosed,    // by the daemon, or it died
  kBadFrame,  // longer than a frame may be, or its fds were lost on the way
};

struct ReceivedFds {
  std::array<UniqueFd, kFdsPerFrameMax> fds;
  size_t count = 0;
};

class Connection {
 public:
  // nullptr when nobody answers; `error` then says what was tried and why it failed.
  static std::unique_ptr<Connection> Open(const std::string& path, const Deadline& deadline, std::string* error);
  explicit Connection(UniqueFd fd) : fd_(std::move(fd)) {}

  // `deadline` nullptr: kTimedOut at once when the daemon's queue is full.
  IoResult Send(const char* data, size_t bytes, const Deadline* deadline);
  // True when a frame may be taken, or the connection has ended; false when the deadline passed.
  bool AwaitRoom(const Deadline& deadline) { return WaitFor(POLLOUT, deadline); }
  // One frame into `buffer` of kFrameBytesMax. `deadline` nullptr: kTimedOut at once when there is none.
  IoResult Receive(char* buffer, size_t* bytes, ReceivedFds* fds, const Deadline* deadline);
  // Ends it for every process that holds a copy of the fd. Any thread.
  void Shutdown();
  int fd() const { return fd_.get(); }

 private:
  // Leaves the wait to the receive itself when its standing timeout fits: one system call instead of two.
  bool MayBlock(const Deadline& deadline);
  bool WaitFor(short events, const Deadline& deadline);
  // Stays awake for the moment most answers take: being woken costs as much again.
  void AwaitSoonAnswer();

  const UniqueFd fd_;
  uint32_t receive_timeout_ms_ = 0;  // what SO_RCVTIMEO is set to
  uint32_t spins_ = 0;
  bool may_spin_ = false;
};

}  // namespace kvartal::client
