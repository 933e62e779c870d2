#include "operator/reconcile/cluster_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"

namespace kvartal::reconcile {

const PolicyObject& ClusterReader::ReadOnce(const kube::ObjectKey& key, const nlohmann::json& object,
                                            std::map<kube::ObjectKey, Known>* before) {
  std::string state = absl::StrCat(kube::TextAt(object, {"metadata", "uid"}), "/",
                                   kube::NumberAt(object, {"metadata", "generation"}).value_or(0));
  const auto known = before->find(key);
  if (known != before->end() && known->second.state == state)
    return known_.insert(known_.end(), before->extract(known))->second.policy;
  return known_.emplace_hint(known_.end(), key, Known{std::move(state), ReadPolicy(object)})->second.policy;
}

ClusterState ClusterReader::Read(const ClusterStores& stores, const std::map<kube::ObjectKey, SharedPolicy>& accepted,
                                 std::vector<std::string>* unreadable) {
  ClusterState state;
  std::map<kube::ObjectKey, Known> before = std::exchange(known_, {});
  for (const auto& [key, object] : stores.policies->objects()) {
    // What is being deleted is in force no more; what holds it up is no policy.
    if (IsBeingDeleted(*object)) continue;
    PolicyObject policy = ReadOnce(key, *object, &before);
    const auto last = accepted.find(key);
    if (last != accepted.end() && last->second->uid == policy.uid) policy.accepted = last->second;
    // An annotation is not of the spec: it has no generation of its own.
    if (IsPaused(*object)) {
      policy.wanted = policy.accepted;
      policy.why_unreadable = absl::StrCat("the annotation ", kPausedAnnotation, " is set");
    }
    state.policies.push_back(std::move(policy));
  }
  for (const auto& [key, object] : stores.pools->objects()) {
    PoolObject pool = ReadPool(*object);
    if (!pool.why_unreadable.empty()) unreadable->push_back(pool.why_unreadable);
    state.pools.push_back(std::move(pool));
  }
  for (const auto& [key, object] : stores.nodes->objects()) state.nodes.push_back(ReadNode(*object));
  for (const auto& [key, object] : stores.namespaces->objects()) state.namespaces.push_back(ReadNamespace(*object));
  return state;
}

}  // namespace kvartal::reconcile
