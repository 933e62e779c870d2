#include "daemon/control/told_pods.h"

#include <algorithm>
#include <utility>

#include "daemon/base/limits.h"

namespace kvartal::control {

absl::Status ToldPods::Take(const sync::v1::Pods& pods) {
  KV_ASSIGN_OR_RETURN(crds::PodSet now, bound_.With(pods));
  std::erase_if(gone_, [&](const std::string& uid) { return now.uids().contains(uid); });
  for (const std::string& uid : bound_.uids()) {
    if (!now.uids().contains(uid)) gone_.push_back(uid);
  }
  while (gone_.size() > kGonePodsMax) gone_.pop_front();
  bound_ = std::move(now);
  return absl::OkStatus();
}

std::string ToldPods::Kept() const {
  sync::v1::Pods pods = bound_.Whole();
  for (const std::string& uid : gone_) pods.add_gone(uid);
  return pods.SerializeAsString();
}

absl::Status ToldPods::Restore(const std::string& kept) {
  sync::v1::Pods pods;
  if (!pods.ParseFromString(kept)) return absl::InvalidArgumentError("it is no set of pods");
  KV_ASSIGN_OR_RETURN(bound_, crds::PodSet().With(pods));
  gone_.assign(pods.gone().begin(), pods.gone().end());
  return absl::OkStatus();
}

}  // namespace kvartal::control
