// The sets that nodes hold, each kept once: of thousands of nodes, those of one pool hold the same hundreds of hashes.
// Confined to the loop of its fleet.
// Invariant: a version names one content, so sets of one version are one; a set that nobody holds is not kept.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "crds/policy_set.h"
#include "operator/sync/limits.h"

namespace kvartal::sync {

using SharedHashes = std::shared_ptr<const crds::PolicySet::Hashes>;

class SharedSets {
 public:
  // REQUIRES: `version` is that of `hashes`, or both are empty.
  SharedHashes Share(const std::string& version, crds::PolicySet::Hashes hashes);
  void Know(const std::string& version, const SharedHashes& hashes);
  static const SharedHashes& Nothing();
  size_t size() const { return known_.size(); }

 private:
  std::map<std::string, std::weak_ptr<const crds::PolicySet::Hashes>> known_;
  size_t sweep_at_ = kSetsSweepMin;
};

}  // namespace kvartal::sync
