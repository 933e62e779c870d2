// What is in force, and whether one more policy may be.
// Confined to one CompileCluster.
// Invariants: a subject has one owner; a policy is judged against everything that is in force but itself.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "operator/reconcile/cluster_state.h"

namespace kvartal::reconcile {

// Bytes of a node; hbm of a GPU. A tier the pool does not state is bounded by each node alone.
struct TierBytes {
  uint64_t hbm = 0, dram = 0, nvme = 0;
  friend bool operator==(const TierBytes&, const TierBytes&) = default;
};

struct Verdict {
  std::string reason;                 // empty: may be in force
  std::vector<std::string> findings;  // "field: what, and what to do"
};

class Admission {
 public:
  explicit Admission(const ClusterState& state);

  // Whether `policy` may be in force instead of what it was before.
  Verdict Judge(const crds::TenantPolicy& policy) const;
  // The parts of that: each subject is free, each grant allows it, each guarantee is below its own limit and fits
  // beside those of others, or is no more than it was. None says anything of a claim on a pool that is not there.
  Verdict JudgeSubjects(const crds::TenantPolicy& policy) const;
  Verdict JudgeGrants(const crds::TenantPolicy& policy) const;
  Verdict JudgeCapacity(const crds::TenantPolicy& policy) const;
  // And what concerns only what is not in force yet: that it can be told what a guarantee comes to, and that a node
  // takes so many tenants.
  Verdict JudgeStated(const crds::TenantPolicy& policy) const;
  Verdict JudgeCount(const crds::TenantPolicy& policy) const;
  // References to what does not exist.
  std::vector<std::string> Unresolved(const crds::TenantPolicy& policy) const;
  void PutInForce(const SharedPolicy& policy);

  // nullptr: there is none, or none that can be read.
  const crds::NodePool* FindPool(const std::string& name) const;
  const ClusterNamespace* FindNamespace(const std::string& name) const;

 private:
  using Owner = std::string;  // "namespace/name"

  void Withdraw(const Owner& owner);

  // A sum may be more than a size can be: a pool that was made smaller holds more than it states.
  using Sum = unsigned __int128;
  struct Guarantees {
    std::map<Owner, TierBytes> of;
    Sum hbm = 0, dram = 0, nvme = 0;
  };
  static void Add(Guarantees* guarantees, const TierBytes& bytes);
  static void Subtract(Guarantees* guarantees, const TierBytes& bytes);
  // Of all but this owner.
  Guarantees OfOthers(const std::string& pool, const Owner& owner) const;
  TierBytes OfOwner(const std::string& pool, const Owner& owner) const;

  std::map<std::string, const crds::NodePool*> pools_;  // that can be read
  std::set<std::string> unreadable_pools_;
  std::map<std::string, const ClusterNamespace*> namespaces_;
  std::map<std::string, Owner> subjects_;  // "namespace/service account"
  std::map<Owner, SharedPolicy> in_force_;
  std::map<std::string, Guarantees> guarantees_;  // by pool
};

// What a pool states; what a claim is guaranteed there.
TierBytes CapacityOf(const crds::NodePool& pool);
TierBytes GuaranteesOf(const crds::PoolClaim& claim, const crds::NodePool& pool);
// The same for adding up and comparing, also in a tier that is not stated: what part of it is asked for.
TierBytes PromisesOf(const crds::PoolClaim& claim, const crds::NodePool& pool);

}  // namespace kvartal::reconcile
