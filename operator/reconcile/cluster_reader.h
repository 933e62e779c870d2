// A whole cluster as CompileCluster reads it. Each generation of each policy is read once: of ten thousand, few have
// changed since the last time.
// Confined to the loop of its decider.
// Invariant: it says what reading every object anew would, and remembers nothing of objects that are gone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "operator/reconcile/object_reader.h"

namespace kvartal::reconcile {

struct ClusterStores {
  const kube::ObjectStore* policies;
  const kube::ObjectStore* pools;
  const kube::ObjectStore* nodes;
  const kube::ObjectStore* namespaces;
};

class ClusterReader {
 public:
  // All but the policies that are being deleted. `accepted`: what of each policy was accepted last. Why pools cannot be
  // read is told in `unreadable`, too.
  ClusterState Read(const ClusterStores& stores, const std::map<kube::ObjectKey, SharedPolicy>& accepted,
                    std::vector<std::string>* unreadable);

 private:
  struct Known {
    std::string state;  // uid and generation
    PolicyObject policy;
  };
  const PolicyObject& ReadOnce(const kube::ObjectKey& key, const nlohmann::json& object,
                               std::map<kube::ObjectKey, Known>* before);

  std::map<kube::ObjectKey, Known> known_;
};

}  // namespace kvartal::reconcile
