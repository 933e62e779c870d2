// A policy folder that is watched: reads it, and reads it again once it has changed and come to rest.
// Confined to one thread at a time.
// Invariant: what was read is at least as new as the state that was remembered for it, so no change goes unseen.
#pragma once

#include <optional>
#include <string>

#include "daemon/control/policy_source.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::control {

class PolicyFolder {
 public:
  PolicyFolder(std::string folder, policy::NodeCapacity capacity) : folder_(std::move(folder)), capacity_(capacity) {}

  absl::StatusOr<LoadedPolicy> Read();
  // nullopt: as it was at the last Read, or different from the call before, so somebody may still be writing. To be
  // called every kPolicyPollMs. Names, inodes, sizes and times are compared, of the files that links lead to: a swapped
  // ConfigMap is a change, and no notification of the file system is needed, which a network mount would not send.
  std::optional<absl::StatusOr<LoadedPolicy>> ReadIfChanged();

 private:
  // What tells one state of the folder from another.
  std::string State() const;

  const std::string folder_;
  const policy::NodeCapacity capacity_;
  std::string read_state_;  // before the last Read
  std::string seen_state_;  // at the last call
};

}  // namespace kvartal::control
