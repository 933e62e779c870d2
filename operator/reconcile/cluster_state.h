// What a cluster says about policy, as plain values: the whole input of CompileCluster.
// Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "crds/node_pool.h"
#include "operator/reconcile/shared_policy.h"

namespace kvartal::reconcile {

using Labels = std::map<std::string, std::string>;

struct ClusterNode {
  std::string name;
  Labels labels;
};

struct ClusterNamespace {
  std::string name, uid;
  Labels labels;
};

struct PolicyObject {
  std::string ns, name, uid;
  std::string created;  // RFC 3339 in UTC, as the API server writes it: orders as text
  SharedPolicy wanted;  // absent: the object says nothing that can be read
  std::string why_unreadable;
  // What of this object was accepted last. It stays in force until what is wanted now is accepted in its place.
  SharedPolicy accepted;
};

struct PoolObject {
  crds::NodePool pool;  // of one that cannot be read its name and its nodeSelector alone
  std::string created;
  std::string why_unreadable;  // "": it can be read
};

struct ClusterState {
  std::vector<ClusterNode> nodes;
  std::vector<ClusterNamespace> namespaces;
  std::vector<PolicyObject> policies;
  std::vector<PoolObject> pools;
};

}  // namespace kvartal::reconcile
