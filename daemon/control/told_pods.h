// What this node was told of its pods: which are bound to it, and which were and are not any more. The latter are gone:
// their tokens count no more, whatever time those have left.
// A plain value.
// Invariants: a pod is gone only if this node was told of it before, and then told of the others without it. That a pod
// was never named says nothing: it may have begun while nobody told, or since, or beside an operator that does not see
// pods; its token alone speaks for it. The newest word counts: a pod that is named again is not gone.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "crds/pod_set.h"

namespace kvartal::control {

class ToldPods {
 public:
  // InvalidArgument: it does not follow from what was told before; nothing has changed.
  absl::Status Take(const sync::v1::Pods& pods);

  const crds::PodSet& bound() const { return bound_; }
  // At most kGonePodsMax, the oldest first; those before have no token any more that has not expired.
  const std::deque<std::string>& gone() const { return gone_; }

  // For the next start, which is told what has changed meanwhile.
  std::string Kept() const;
  // InvalidArgument: it was not kept by this; nothing has changed.
  absl::Status Restore(const std::string& kept);

 private:
  crds::PodSet bound_;
  std::deque<std::string> gone_;
};

}  // namespace kvartal::control
