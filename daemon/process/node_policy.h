// The policy in force: loaded from the folder at start, replaced whole when a reload is good, kept when it is not.
// Confined to the engine loop, except ReadFolder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/status.h"
#include "daemon/config/node_config.h"
#include "daemon/control/policy_source.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::process {

// What a node has, by its configuration.
policy::NodeCapacity CapacityOf(const config::NodeConfig& config);

class NodePolicy {
 public:
  static absl::StatusOr<std::unique_ptr<NodePolicy>> Load(const config::NodeConfig& config, const Clock* clock);

  const std::shared_ptr<const policy::PolicyTable>& table() const { return table_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Any thread: a folder of many files, or on a slow disk, takes seconds.
  absl::StatusOr<control::LoadedPolicy> ReadFolder() const;
  // Puts what was read in force. Not OK: table() is what it was, and the failure is counted and remembered.
  absl::Status Replace(absl::StatusOr<control::LoadedPolicy> read);

  uint64_t age_ms() const;
  uint64_t reload_failures() const { return reload_failures_; }
  // Of the last reload; empty when it was good.
  const std::string& last_error() const { return last_error_; }

 private:
  NodePolicy(std::string folder, policy::NodeCapacity capacity, const Clock* clock)
      : folder_(std::move(folder)), capacity_(capacity), clock_(clock) {}
  void PutInForce(control::LoadedPolicy loaded);

  const std::string folder_;
  const policy::NodeCapacity capacity_;
  const Clock* const clock_;
  std::shared_ptr<const policy::PolicyTable> table_;
  std::vector<std::string> warnings_;
  int64_t loaded_ns_ = 0;
  uint64_t reload_failures_ = 0;
  std::string last_error_;
};

}  // namespace kvartal::process
