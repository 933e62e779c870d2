// UIDs of the pods that are bound to one node, as operator and daemon agree on them: the whole, and the change from one
// set to the next. A plain value.
// Invariant: equal pods, equal version; what a change made has the version it was said to have, or it is refused.
#pragma once

#include <set>
#include <string>

#include "crds/policy_sync.pb.h"
#include "daemon/base/status.h"

namespace kvartal::crds {

class PodSet {
 public:
  PodSet() : PodSet(std::set<std::string>()) {}
  explicit PodSet(std::set<std::string> uids);

  const std::set<std::string>& uids() const { return uids_; }
  // Hex of a hash of all UIDs; never empty.
  const std::string& version() const { return version_; }

  // All of it, for whoever may know nothing.
  sync::v1::Pods Whole() const;
  // What makes this set of that one.
  sync::v1::Pods ChangesFrom(const PodSet& base) const;
  // This set with the changes. InvalidArgument: they are of another set than this, or do not give what they say.
  absl::StatusOr<PodSet> With(const sync::v1::Pods& pods) const;

 private:
  std::set<std::string> uids_;
  std::string version_;
};

}  // namespace kvartal::crds
