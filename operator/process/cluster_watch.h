// The operator's view of the cluster: policies, pools, nodes and namespaces, kept by four reflectors.
// Confined to the operator's loop.
// Invariants: a change of what is decided about is told apart from any other, as a written status or a heartbeat; of a
// node and of a namespace nothing is kept but name, uid and labels.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "operator/kube/reflector.h"
#include "operator/reconcile/cluster_reader.h"

namespace kvartal::process {

inline const kube::ResourceType kPolicies = {"kvartal.dev", "v1alpha1", "tenantkvpolicies", true};
inline const kube::ResourceType kPools = {"kvartal.dev", "v1alpha1", "kvnodepools", false};
inline const kube::ResourceType kNodes = {"", "v1", "nodes", false};
inline const kube::ResourceType kNamespaces = {"", "v1", "namespaces", false};

class ClusterWatch {
 public:
  struct Sink {
    std::function<void()> on_matter;                        // something that is decided about has changed
    std::function<void(const kube::ObjectKey&)> on_policy;  // a policy has changed in any way
    std::function<void(const kube::ObjectKey&)> on_pool;    // and a pool
  };

  ClusterWatch(kube::ApiClient* client, EventLoop* loop, const Clock* clock, uint64_t seed, Sink sink);

  void Start();
  bool synced() const;
  const kube::ObjectStore& policies() const { return reflectors_[0]->store(); }
  const kube::ObjectStore& pools() const { return reflectors_[1]->store(); }
  reconcile::ClusterStores stores() const;
  // "": all is well. Else which cache fails by what.
  std::string trouble() const;
  struct Report {
    std::string resource;
    kube::ListWatchStats stats;
    bool failing = false;
  };
  std::vector<Report> reports() const;

 private:
  void OnChange(size_t kind, const kube::ObjectChange& change);

  const Sink sink_;
  std::array<std::unique_ptr<kube::Reflector>, 4> reflectors_;
  std::array<std::map<kube::ObjectKey, std::string>, 4> matter_;  // of each object, what is decided by
};

}  // namespace kvartal::process
