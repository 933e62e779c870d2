// A session that commits reservations by their numbers alone, whoever they were granted to: frames that the client
// library refuses to send.
// Confined to one thread.
// Invariant: a reservation counts as tried only when the daemon has answered for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "daemon/attach/attach.pb.h"
#include "daemon/base/status.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::bench {

struct CommitTally {
  uint64_t tried = 0;
  uint64_t accepted = 0;  // the daemon made the block visible, or took its shard
  uint64_t refused = 0;   // "not filling" or "not yours"

  CommitTally& operator+=(const CommitTally& other) {
    tried += other.tried;
    accepted += other.accepted;
    refused += other.refused;
    return *this;
  }
};

class RawSession {
 public:
  // `group` "": a new engine group; else 16 bytes of the one to join. PermissionDenied when the daemon says no.
  static absl::StatusOr<std::unique_ptr<RawSession>> Attach(const std::string& socket_path, const std::string& group);

  absl::StatusOr<CommitTally> Commit(std::span<const uint64_t> reservations);

 private:
  explicit RawSession(UniqueFd socket) : socket_(std::move(socket)) {}
  absl::Status Send(const attach::v1::ClientFrame& frame);
  // The answer to `request_id`; what is said unasked is passed over, memory is acknowledged and not kept.
  absl::StatusOr<attach::v1::ServerFrame> Answer(uint64_t request_id);

  const UniqueFd socket_;
  uint64_t last_request_ = 0;
};

}  // namespace kvartal::bench
