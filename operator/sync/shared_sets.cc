#include "operator/sync/shared_sets.h"

#include <algorithm>
#include <utility>
namespace kvartal::sync {

SharedHashes SharedSets::Share(const std::string& version, crds::PolicySet::Hashes hashes) {
  if (const auto known = known_.find(version); known != known_.end()) {
    // A node says both: one that lies about its own shares nothing with others.
    if (const SharedHashes same = known->second.lock()) {
      return *same == hashes ? same : std::make_shared<const crds::PolicySet::Hashes>(std::move(hashes));
    }
  }
  const auto made = std::make_shared<const crds::PolicySet::Hashes>(std::move(hashes));
  Know(version, made);
  return made;
}

void SharedSets::Know(const std::string& version, const SharedHashes& hashes) {
  known_[version] = hashes;
  if (known_.size() < sweep_at_) return;
  std::erase_if(known_, [](const auto& one) { return one.second.expired(); });
  sweep_at_ = std::max(kSetsSweepMin, 2 * known_.size());
}

const SharedHashes& SharedSets::Nothing() {
  static const SharedHashes nothing = std::make_shared<const crds::PolicySet::Hashes>();
  return nothing;
}

}  // namespace kvartal::sync
