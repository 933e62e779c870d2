// One process of kvartal-mover and the daemon's end of its socket. Movable; its end kills the process and waits.
// Confined to the engine loop, which watches socket() and exit_fd().
// Invariant: until Reap has returned, the process may hold the memory it was sent.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/mover_wire.h"

namespace kvartal::device {

class MoverChild {
 public:
  enum class Sent { kSent, kFull, kBroken };
  enum class Received { kPacket, kNothing, kEnded };

  // argv[0] is the file. It inherits standard streams, the environment and its end of the socket; no other descriptor.
  static absl::StatusOr<MoverChild> Spawn(const std::vector<std::string>& argv);
  MoverChild(MoverChild&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), exit_(std::move(other.exit_)), socket_(std::move(other.socket_)) {}
  MoverChild& operator=(MoverChild&&) = delete;
  ~MoverChild();

  pid_t pid() const { return pid_; }
  int socket() const { return socket_.get(); }
  int exit_fd() const { return exit_.get(); }  // readable when the process is no more

  // `fd`: -1 for none. kFull: try again when the socket can be written.
  Sent Send(const MoverRequest& request, int fd);
  // A packet into `buffer`, and how long it is; one that does not fit is of no use, and as long as the buffer.
  Received Receive(std::span<std::byte> buffer, size_t* bytes);

  void Kill();
  // Waits until the process is no more; how it ended, in words.
  std::string Reap();

 private:
  MoverChild(pid_t pid, UniqueFd exit, UniqueFd socket)
      : pid_(pid), exit_(std::move(exit)), socket_(std::move(socket)) {}

  pid_t pid_;  // 0: reaped, or moved from
  UniqueFd exit_;
  UniqueFd socket_;
};

}  // namespace kvartal::device
