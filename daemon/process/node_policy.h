// The policy in force: what the feed begins with, replaced whole when what it offers later is good, kept when it is
// not. Confined to the engine loop.
// Invariant: table() is always one that holds together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/config/node_config.h"
#include "daemon/control/policy_feed.h"
#include "daemon/control/subject_reach.h"
#include "daemon/policy/policy_table.h"
#include "daemon/process/described_node.h"

namespace kvartal::process {

class NodePolicy {
 public:
  // OK: table() has changed. Not OK: what was read is refused, and table() is what it was.
  using OnRead = std::function<void(const absl::Status&)>;

  static absl::StatusOr<std::unique_ptr<NodePolicy>> Load(const config::NodeConfig& config, const Clock* clock);

  // From now on `on_read` is told of each set that comes; also after each Reload. `loop` outlives this object's
  // threads, which end with it.
  void Watch(EventLoop* loop, OnRead on_read);
  // Looks for a set now, changed or not.
  void Reload(absl::AnyInvocable<void(absl::Status)> done) { feed_->Reload(std::move(done)); }
  void StopWatching() { feed_->StopWatching(); }
  bool reading() const { return feed_->busy(); }
  // Whose tokens count, where policy comes with that: at once when it is known, and whenever it changes.
  void WatchKeys(const control::PolicyFeed::OnKeys& on_keys) { feed_->WatchKeys(on_keys); }
  // The pods whose tokens count no more, likewise.
  void WatchPods(const control::PolicyFeed::OnGonePods& on_gone) { feed_->WatchPods(on_gone); }
  void TellUse(const std::vector<control::TenantUse>& use) { feed_->TellUse(use); }

  const std::shared_ptr<const policy::PolicyTable>& table() const { return table_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  uint64_t age_ms() const;
  uint64_t reload_failures() const { return reload_failures_; }
  // Why what was last read, or a part of it, is not in force; empty when all of it is.
  const std::string& last_error() const { return last_error_; }
  // For how long nobody has been at the other end of the way policy comes by; nullopt: it has no other end.
  std::optional<uint64_t> away_ms() const { return feed_->away_ms(); }
  // What is wrong with the way policy comes by; empty when nothing is.
  std::string feed_note() const { return feed_->note(); }
  // A set states another capacity than this daemon has begun with, nobody is served, and the next start takes it.
  bool wants_restart() const { return wants_restart_; }

 private:
  NodePolicy(const config::NodeConfig& config, const Clock* clock);
  absl::Status Refuse(const absl::Status& why);
  // Once, however often it is read.
  void TellRefused(const std::string& what, const std::string& why);
  absl::Status Replace(absl::StatusOr<control::LoadedPolicy> read);
  void PutInForce(control::LoadedPolicy loaded);

  const control::NodeIdentities known_;
  const Clock* const clock_;
  OnRead on_read_;
  std::shared_ptr<const policy::PolicyTable> table_;
  std::vector<std::string> warnings_;
  int64_t loaded_ns_ = 0;
  uint64_t reload_failures_ = 0;
  std::string last_error_;
  bool wants_restart_ = false;
  const std::unique_ptr<control::PolicyFeed> feed_;  // last: its threads use what is above
};

}  // namespace kvartal::process
