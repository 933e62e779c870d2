// Which pods are on which node, as the API server has them: bound to it, and not ended. Told node by node when it has
// changed and come to rest. A pod that is deleted with grace is there until it is gone.
// Confined to the operator's loop.
// Invariants: of a pod nothing is kept but its name, its UID and its node; nothing is told before all are known, and
// without the permission for it nothing at all; a list comes from the store, never from a cache that may be older than
// what was told before, since a pod that is missing there would seem to be gone.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "crds/pod_set.h"
#include "operator/kube/reflector.h"
#include "operator/process/cluster_watch.h"

namespace kvartal::process {

inline const kube::ResourceType kPods = {"", "v1", "pods", true};

class PodWatch {
 public:
  using OfNodes = std::map<std::string, std::shared_ptr<const crds::PodSet>>;
  struct Sink {
    std::function<void(OfNodes)> on_known;           // once: of all nodes that have any
    std::function<void(const OfNodes&)> on_changed;  // of these nodes: what they have now, be it none
  };

  PodWatch(kube::ApiClient* client, EventLoop* loop, const Clock* clock, uint64_t seed, Sink sink);
  ~PodWatch() { loop_->CancelTimer(timer_); }
  PodWatch(const PodWatch&) = delete;
  PodWatch& operator=(const PodWatch&) = delete;

  void Start();
  ClusterWatch::Report report() const;

 private:
  void OnChange(const kube::ObjectChange& change);
  void TellLater();
  void Tell();
  void NoteForbidden();

  EventLoop* const loop_;
  const Sink sink_;
  std::map<std::string, std::set<std::string>> uids_of_;  // by node
  std::set<std::string> changed_;                         // nodes, since they were told of last
  bool known_ = false;                                    // on_known was called
  bool forbidden_ = false;                                // and that was said
  EventLoop::TimerId timer_ = 0;                          // 0: nothing is to be told
  kube::Reflector reflector_;                             // last: it calls
};

}  // namespace kvartal::process
