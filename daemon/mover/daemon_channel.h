// The mover's end of its socket: requests in, answers out, several a packet.
// Confined to the mover's thread.
// Invariant: a request it gives is of the right size and has its descriptor, if one came; its words are not checked.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/mover_wire.h"

namespace kvartal::mover {

struct ReceivedRequest {
  device::MoverRequest request;
  UniqueFd fd;
};

class DaemonChannel {
 public:
  explicit DaemonChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  // FailedPrecondition: the descriptor is no such socket, for example since nobody's daemon has started this.
  absl::Status Check() const;
  absl::Status SayHello(bool simulated);
  // nullopt: nothing now. Cancelled: the daemon's end is gone. InvalidArgument: no request.
  absl::StatusOr<std::optional<ReceivedRequest>> Receive();
  // Kept until Flush, which waits while the daemon does not read.
  void Answer(uint64_t operation, const absl::Status& status);
  absl::Status Flush();
  // Returns when there is something to receive, or after `microseconds` (< 0: never).
  void Wait(int64_t microseconds) const;

 private:
  absl::Status Send(const void* bytes, size_t length);

  const UniqueFd socket_;
  std::vector<device::MoverAnswer> answers_;
};

}  // namespace kvartal::mover
