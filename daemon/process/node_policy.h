// The policy in force: loaded from the folder at start, replaced whole when what is read later is good, kept when it is
// not. Confined to the engine loop; the folder is read on a thread of its own.
// Invariant: table() is always one that was good as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/base/worker_pool.h"
#include "daemon/config/node_config.h"
#include "daemon/control/policy_folder.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::process {

// What a node has, by its configuration.
policy::NodeCapacity CapacityOf(const config::NodeConfig& config);

class NodePolicy {
 public:
  // OK: table() has changed. Not OK: what was read is refused, and table() is what it was.
  using OnRead = std::function<void(const absl::Status&)>;

  static absl::StatusOr<std::unique_ptr<NodePolicy>> Load(const config::NodeConfig& config, const Clock* clock);

  // From now on a folder that changes is read again and `on_read` told, once a change; also after each Reload. `loop`
  // outlives this object's thread, which ends with it.
  void Watch(EventLoop* loop, OnRead on_read);
  // Reads the folder again now, changed or not.
  void Reload(absl::AnyInvocable<void(absl::Status)> done);
  void StopWatching() { watching_ = false; }
  bool reading() const { return reader_ != nullptr && reader_->Pending() > 0; }

  const std::shared_ptr<const policy::PolicyTable>& table() const { return table_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  uint64_t age_ms() const;
  uint64_t reload_failures() const { return reload_failures_; }
  // Why what was last read is refused; empty when it is not.
  const std::string& last_error() const { return last_error_; }

 private:
  NodePolicy(const config::NodeConfig& config, const Clock* clock)
      : folder_path_(config.policy_dir),
        attest_tokens_(config.kubernetes.has_value()),
        folder_(config.policy_dir, CapacityOf(config)),
        clock_(clock) {}
  void Poll();
  absl::Status Refuse(const absl::Status& why);
  absl::Status Replace(absl::StatusOr<control::LoadedPolicy> read);
  void PutInForce(control::LoadedPolicy loaded);

  const std::string folder_path_;
  const bool attest_tokens_;
  control::PolicyFolder folder_;  // after Load: touched by the reader's thread alone
  const Clock* const clock_;
  EventLoop* loop_ = nullptr;
  OnRead on_read_;
  bool watching_ = false;
  std::shared_ptr<const policy::PolicyTable> table_;
  std::vector<std::string> warnings_;
  int64_t loaded_ns_ = 0;
  uint64_t reload_failures_ = 0;
  std::string last_error_;
  std::unique_ptr<WorkerPool> reader_;  // last: its thread uses what is above
};

}  // namespace kvartal::process
