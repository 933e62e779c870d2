#include "operator/process/decider.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "operator/kube/json_fields.h"
#include "operator/reconcile/policy_status.h"

namespace kvartal::process {
namespace {

std::string StateOf(const nlohmann::json& object) {
  return absl::StrCat(kube::TextAt(object, {"metadata", "uid"}), "/",
                      kube::NumberAt(object, {"metadata", "generation"}).value_or(0), "/", reconcile::IsPaused(object));
}

}  // namespace

void Decider::Start() {
  for (const auto& [key, object] : watch_->policies().objects()) {
    reconcile::SharedPolicy in_force = reconcile::InForceByStatus(*object);
    if (in_force) accepted_[key] = std::move(in_force);
  }
  Log(LogLevel::kInfo, "operator", watch_->policies().objects().size(), " policies, of which ", accepted_.size(),
      " were accepted before");
  started_ = true;
  Decide();
}

void Decider::OnMatter() {
  if (!started_) return;
  const int64_t now_ms = NowMs();
  if (first_change_ms_ == 0) first_change_ms_ = now_ms;
  const int64_t wait_ms = std::min(kSettleMs, first_change_ms_ + kSettleMaxMs - now_ms);
  loop_->CancelTimer(timer_);
  timer_ = loop_->RunAfterMs(std::max<int64_t>(0, wait_ms), [this] { Decide(); });
}

void Decider::Decide() {
  first_change_ms_ = 0;
  const int64_t begin_ns = clock_->MonotonicNs();
  std::vector<std::string> unreadable;
  const reconcile::ClusterState state = reader_.Read(watch_->stores(), accepted_, &unreadable);
  if (unreadable != unreadable_) {
    for (const std::string& why : unreadable) Log(LogLevel::kError, "operator", why);
  }
  unreadable_ = std::move(unreadable);
  reconcile::CompiledCluster before = std::exchange(compiled_, reconcile::CompileCluster(state, compiled_));
  accepted_.clear();
  std::vector<kube::ObjectKey> changed;
  std::map<kube::ObjectKey, std::string> decided;
  for (const auto& [name, verdict] : compiled_.policies) {
    const kube::ObjectKey key = {name.first, name.second};
    if (verdict.accepted) accepted_[key] = verdict.accepted;
    const auto object = watch_->policies().Find(key);
    decided[key] = object == nullptr ? "" : StateOf(*object);
    const auto known = before.policies.find(name);
    if (known == before.policies.end() || !(known->second == verdict) || decided_[key] != decided[key])
      changed.push_back(key);
  }
  decided_ = std::move(decided);
  const std::vector<kube::ObjectKey> pools = JudgedPools(before.pools);
  GiveNodes(state);
  ++runs_;
  last_run_us_ = (clock_->MonotonicNs() - begin_ns) / 1000;
  for (const kube::ObjectKey& key : changed) sink_.on_verdict(key);
  for (const kube::ObjectKey& key : pools) sink_.on_pool(key);
}

std::vector<kube::ObjectKey> Decider::JudgedPools(const std::map<std::string, reconcile::PoolVerdict>& before) {
  std::vector<kube::ObjectKey> changed;
  const std::map<kube::ObjectKey, std::string> decided_before = std::exchange(decided_pools_, {});
  for (const auto& [name, verdict] : compiled_.pools) {
    const kube::ObjectKey key = {"", name};
    const auto object = watch_->pools().Find(key);
    const std::string& state = decided_pools_[key] = object == nullptr ? "" : StateOf(*object);
    const auto known = before.find(name);
    const auto decided = decided_before.find(key);
    if (known == before.end() || !(known->second == verdict) || decided == decided_before.end() ||
        decided->second != state)
      changed.push_back(key);
  }
  return changed;
}

void Decider::GiveNodes(const reconcile::ClusterState& state) {
  std::map<std::string, SharedNode> nodes = compiled_.nodes;
  if (unreadable_.empty()) {
    static const SharedNode none = [] {
      auto node = std::make_shared<reconcile::CompiledNode>();
      node->Seal();
      return node;
    }();
    for (const reconcile::ClusterNode& node : state.nodes) nodes.emplace(node.name, none);
  }
  sink_.on_nodes(nodes);
}

const reconcile::PoolVerdict* Decider::VerdictOnPool(const nlohmann::json& object) const {
  const kube::ObjectKey key = kube::KeyOf(object);
  const auto state = decided_pools_.find(key);
  if (state == decided_pools_.end() || state->second != StateOf(object)) return nullptr;
  const auto verdict = compiled_.pools.find(key.name);
  return verdict == compiled_.pools.end() ? nullptr : &verdict->second;
}

const reconcile::PolicyVerdict* Decider::VerdictOn(const nlohmann::json& object) const {
  const kube::ObjectKey key = kube::KeyOf(object);
  const auto state = decided_.find(key);
  if (state == decided_.end() || state->second != StateOf(object)) return nullptr;
  const auto verdict = compiled_.policies.find({key.ns, key.name});
  return verdict == compiled_.policies.end() ? nullptr : &verdict->second;
}

}  // namespace kvartal::process
