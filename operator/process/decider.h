// Decides anew when the cluster has changed: what each node is to enforce, and the verdict on each policy. Remembers
// what was accepted; what it remembers at the start stands in the status of the policies.
// Confined to the operator's loop.
// Invariants: nothing is decided before every cache is filled; what was accepted of an object stays accepted until the
// object asks for something else that is; a node is not taken from its pool because a pool could not be read.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "operator/process/cluster_watch.h"
#include "operator/process/limits.h"
#include "operator/reconcile/compile_cluster.h"

namespace kvartal::process {

class Decider {
 public:
  using SharedNode = std::shared_ptr<const reconcile::CompiledNode>;
  struct Sink {
    std::function<void(const std::map<std::string, SharedNode>&)> on_nodes;
    std::function<void(const kube::ObjectKey&)> on_verdict;  // on a policy: one that is new, or another than before
    std::function<void(const kube::ObjectKey&)> on_pool;     // the same of a pool
  };

  Decider(const ClusterWatch* watch, EventLoop* loop, const Clock* clock, Sink sink)
      : watch_(watch), loop_(loop), clock_(clock), sink_(std::move(sink)) {}
  ~Decider() { loop_->CancelTimer(timer_); }
  Decider(const Decider&) = delete;
  Decider& operator=(const Decider&) = delete;

  // Begins to decide, with what the policies' status says was accepted.
  void Start();
  // Something has changed. Decided when it has come to rest, or at the latest kSettleMaxMs later.
  void OnMatter();
  // nullptr: `object`, as it is now, was not decided about yet.
  const reconcile::PolicyVerdict* VerdictOn(const nlohmann::json& object) const;
  const reconcile::PoolVerdict* VerdictOnPool(const nlohmann::json& object) const;

  uint64_t runs() const { return runs_; }
  int64_t last_run_us() const { return last_run_us_; }
  // Pools that cannot be read.
  const std::vector<std::string>& unreadable() const { return unreadable_; }

 private:
  void Decide();
  void GiveNodes(const reconcile::ClusterState& state);
  // Those that are new, or others than before.
  std::vector<kube::ObjectKey> JudgedPools(const std::map<std::string, reconcile::PoolVerdict>& before);
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  const ClusterWatch* const watch_;
  EventLoop* const loop_;
  const Clock* const clock_;
  const Sink sink_;
  bool started_ = false;
  EventLoop::TimerId timer_ = 0;
  int64_t first_change_ms_ = 0;  // of those that wait; 0: none does
  reconcile::ClusterReader reader_;
  std::map<kube::ObjectKey, reconcile::SharedPolicy> accepted_;
  std::map<kube::ObjectKey, std::string> decided_;  // which state of the object: uid and generation
  std::map<kube::ObjectKey, std::string> decided_pools_;
  reconcile::CompiledCluster compiled_;
  std::vector<std::string> unreadable_;
  uint64_t runs_ = 0;
  int64_t last_run_us_ = 0;
};

}  // namespace kvartal::process
