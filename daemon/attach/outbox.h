// What one client is still to read. Frames go straight to the socket while it takes them; the rest waits here, in
// order.
// Confined to the engine loop.
// Invariants: frames leave in the order they were given; never more than kOutboxFramesMax frames and kOutboxBytesMax
// bytes wait.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>

namespace kvartal::attach {

// What goes beside one frame.
struct OutgoingFds {
  int count = 0;
  int fds[2] = {-1, -1};
};

class Outbox {
 public:
  enum class Outcome : uint8_t {
    kSent,    // the kernel has it all
    kQueued,  // waits for the client to read
    kFull,    // the client does not read: nothing was taken
    kBroken,  // the client is gone or the socket failed
  };
  // `fds` go beside the frame; they stay the caller's and must stay open until the frame is sent.
  Outcome Send(int socket, std::span<const std::byte> frame, const OutgoingFds& fds = {});
  // The client has read something. kSent when nothing waits any more.
  Outcome Flush(int socket);
  bool empty() const { return waiting_.empty(); }
  size_t frames() const { return waiting_.size(); }

 private:
  struct Waiting {
    std::string bytes;
    OutgoingFds fds;
  };
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
};

}  // namespace kvartal::attach
