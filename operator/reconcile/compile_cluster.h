// TenantKVPolicy and KVNodePool objects, Nodes and Namespaces -> what each node has to enforce, and what each policy
// and each pool is told. Pure: the same cluster gives the same answer on every replica, in whatever order its objects
// come.
// Invariants: of each pool and tier that states a capacity, the guarantees in force fit it; no policy is accepted with
// a guarantee that was accepted of another, nor with a claim on a pool whose grants were not asked; a subject has one
// owner; a node gets only tenants that may run there; asked again with what it accepted, it says the same.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "crds/policy_set.h"
#include "operator/reconcile/admission.h"
#include "operator/reconcile/cluster_state.h"

namespace kvartal::reconcile {

struct Condition {
  std::string type;
  bool status = false;
  std::string reason;   // one word, for programs
  std::string message;  // for people
  friend bool operator==(const Condition&, const Condition&) = default;
};

// What a policy comes to in one pool, in bytes; of a node, hbm of a GPU.
struct EffectiveQuota {
  std::string pool_ref;
  struct Tier {
    uint64_t guarantee_bytes = 0, limit_bytes = 0;
    friend bool operator==(const Tier&, const Tier&) = default;
  };
  Tier hbm, dram, nvme;
  friend bool operator==(const EffectiveQuota&, const EffectiveQuota&) = default;
};

struct PolicyVerdict {
  std::vector<Condition> conditions;  // ResolvedRefs, Accepted, GuaranteeMet
  // What is wanted if it is accepted, else what was accepted before: to be remembered for the next time.
  SharedPolicy accepted;
  SharedPolicy in_force;                  // that, without guarantees that do not fit a pool as it is now
  size_t nodes_matched = 0;               // nodes of the pools that are claimed by what is in force
  std::vector<EffectiveQuota> effective;  // of what is in force, in the pools that exist
  friend bool operator==(const PolicyVerdict&, const PolicyVerdict&) = default;
};

struct PoolVerdict {
  std::string why_unreadable;  // "": it can be read
  size_t nodes_matched = 0;
  TierBytes guaranteed;       // sum of the guarantees in force, of a node; hbm of a GPU
  size_t unmet_policies = 0;  // whose guarantees do not fit any more
  friend bool operator==(const PoolVerdict&, const PoolVerdict&) = default;
};

struct CompiledNode {
  std::string pool;
  // The pool and its tenants: each with the one claim that is on it, and with the subjects a cluster attests.
  crds::PolicySet set;
  // Of the set, once it is complete: every node that enforces it holds these very hashes, and not its own copy.
  std::shared_ptr<const crds::PolicySet::Hashes> hashes = std::make_shared<const crds::PolicySet::Hashes>();
  std::string version;
  void Seal() {
    hashes = std::make_shared<const crds::PolicySet::Hashes>(set.hashes());
    version = crds::VersionOf(*hashes);
  }
  std::vector<SharedPolicy> tenants;  // that it was made of, by namespace and name
};

struct CompiledCluster {
  // Nodes of some pool; those of one pool share what they enforce.
  std::map<std::string, std::shared_ptr<const CompiledNode>> nodes;
  std::map<std::pair<std::string, std::string>, PolicyVerdict> policies;  // by namespace and name
  std::map<std::string, PoolVerdict> pools;
};

// What is as it was in `before` is shared with it and not made anew: of ten thousand policies, few change at a time.
CompiledCluster CompileCluster(const ClusterState& state, const CompiledCluster& before = {});

}  // namespace kvartal::reconcile
