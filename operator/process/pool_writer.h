// Writes to pools: how far their nodes are with them, and what of them is guaranteed.
// Confined to the operator's loop; each Reconcile looks at the caches and does what is due, and no more.
// Invariants: one pool is written at most every kStatusIntervalMs, and for who is connected alone every
// kConnectedIntervalMs; what is said already is not written.
#pragma once

#include <map>
#include <string>

#include "operator/kube/controller.h"
#include "operator/process/decider.h"
#include "operator/sync/fleet.h"

namespace kvartal::process {

struct PoolWriterStats {
  uint64_t status_writes = 0, failures = 0;
};

class PoolWriter {
 public:
  PoolWriter(kube::ApiClient* client, EventLoop* loop, const Clock* clock, const ClusterWatch* watch,
             const Decider* decider, const sync::Fleet* fleet);

  // From now on. Until kReturnMs later, nodes that have not answered are expected back and not missed.
  void Start();
  void Stop(absl::AnyInvocable<void()> stopped) { controller_.Stop(std::move(stopped)); }
  // Something about this pool may have to be told.
  void Touch(const std::string& name) { controller_.AddAfter(name, kStatusSettleMs); }

  kube::ControllerStats work() const { return controller_.stats(); }
  const PoolWriterStats& stats() const { return stats_; }

 private:
  using Finish = kube::Controller::Finish;

  void Reconcile(const std::string& name, Finish finish);
  void Apply(const std::string& name, const nlohmann::json& status, Finish finish);
  // False, and comes here again, when `since_ms` is not so long ago.
  bool IsDue(const std::string& name, int64_t since_ms, int64_t interval_ms);
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  kube::ApiClient* const client_;
  const Clock* const clock_;
  const ClusterWatch* const watch_;
  const Decider* const decider_;
  const sync::Fleet* const fleet_;
  int64_t returned_ms_ = 0;  // until then nodes may be on their way back
  std::map<std::string, int64_t> written_ms_;
  PoolWriterStats stats_;
  kube::Controller controller_;
};

}  // namespace kvartal::process
