#include "crds/pod_set.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "crds/policy_set.h"

namespace kvartal::crds {
namespace {

// As the version of a set of policies, of which a pod would be the key alone: there is nothing of it that could change.
std::string VersionOfPods(const std::set<std::string>& uids) {
  PolicySet::Hashes hashes;
  for (const std::string& uid : uids) hashes.emplace_hint(hashes.end(), uid, "");
  return VersionOf(hashes);
}

}  // namespace

PodSet::PodSet(std::set<std::string> uids) : uids_(std::move(uids)), version_(VersionOfPods(uids_)) {}

sync::v1::Pods PodSet::Whole() const {
  sync::v1::Pods pods;
  pods.set_version(version_);
  for (const std::string& uid : uids_) pods.add_bound(uid);
  return pods;
}

sync::v1::Pods PodSet::ChangesFrom(const PodSet& base) const {
  sync::v1::Pods pods;
  pods.set_version(version_);
  pods.set_base(base.version_);
  for (const std::string& uid : uids_) {
    if (!base.uids_.contains(uid)) pods.add_bound(uid);
  }
  for (const std::string& uid : base.uids_) {
    if (!uids_.contains(uid)) pods.add_gone(uid);
  }
  return pods;
}

absl::StatusOr<PodSet> PodSet::With(const sync::v1::Pods& pods) const {
  if (!pods.base().empty() && pods.base() != version_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the changes are of the pods ", pods.base(), " and this node has ", version_));
  }
  std::set<std::string> uids = pods.base().empty() ? std::set<std::string>() : uids_;
  for (const std::string& uid : pods.gone()) uids.erase(uid);
  uids.insert(pods.bound().begin(), pods.bound().end());
  PodSet made(std::move(uids));
  if (made.version_ != pods.version()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the changes give the pods ", made.version_, " and are said to give ", pods.version()));
  }
  return made;
}

}  // namespace kvartal::crds
