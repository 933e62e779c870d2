#include "operator/sync/fleet.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace kvartal::sync {
namespace {

std::string PolicyKey(const std::string& ns, const std::string& name) {
  return crds::SetKey("TenantKVPolicy", ns, name);
}

std::string PoolKey(const std::string& name) { return crds::SetKey("KVNodePool", "", name); }

}  // namespace

void Fleet::SetTargets(const std::map<std::string, SharedNode>& targets) {
  deltas_.clear();
  of_pool_.clear();
  std::erase_if(nodes_, [&](const auto& entry) { return entry.second.stream == 0 && !targets.contains(entry.first); });
  for (const auto& [name, target] : targets) {
    Node& node = nodes_[name];
    node.name = name;
    of_pool_[target->pool].push_back(&node);
    if (node.target != target) sets_.Know(target->version, target->hashes);
    node.target = target;
    Pump(&node);
    TellPodsOrWait(&node);
  }
}

void Fleet::SetKeys(const std::string& issuer, const std::string& keys) {
  auto message = std::make_shared<v1::OperatorMessage>();
  message->mutable_identities()->mutable_jwks()->set_issuer(issuer);
  message->mutable_identities()->mutable_jwks()->set_keys(keys);
  keys_ = std::move(message);
  for (const auto& [stream, node] : streams_) sink_.send(stream, keys_);
}

void Fleet::SetPods(std::map<std::string, SharedPods> pods) {
  knows_pods_ = true;
  pods_ = std::move(pods);
  for (const auto& [stream, node] : streams_) TellPodsOrWait(node);
}

void Fleet::ChangePods(const std::map<std::string, SharedPods>& changed) {
  for (const auto& [name, pods] : changed) {
    if (pods->uids().empty()) {
      pods_.erase(name);
    } else {
      pods_[name] = pods;
    }
    const auto node = nodes_.find(name);
    if (node != nodes_.end()) TellPodsOrWait(&node->second);
  }
}

void Fleet::TellPodsOrWait(Node* node) {
  if (node->pods_wait || (pods_waiting_.empty() && TellPods(node))) return;
  node->pods_wait = true;
  pods_waiting_.push_back(node->name);
}

bool Fleet::TellPods(Node* node) {
  if (node->stream == 0 || node->target == nullptr || !knows_pods_) return true;
  static const SharedPods none = std::make_shared<crds::PodSet>();
  const auto known = pods_.find(node->name);
  const SharedPods now = known == pods_.end() ? none : known->second;
  // A part of them would say of the others that they are gone.
  if (now->uids().size() > kPodsOfNodeMax) return true;
  if (node->told_pods != nullptr && node->told_pods->version() == now->version()) return true;
  const int64_t now_ms = NowMs();
  if (node->told_pods != nullptr && now_ms - node->told_pods_ms < kPodsIntervalMs) return false;
  if (pod_turns_.TakeMs(now_ms) > 0) {
    pod_turns_.GiveBack();
    return false;
  }
  auto message = std::make_shared<v1::OperatorMessage>();
  *message->mutable_pods() = node->told_pods == nullptr ? now->Whole() : now->ChangesFrom(*node->told_pods);
  node->told_pods = now;
  node->told_pods_ms = now_ms;
  ++counts_.pod_updates;
  sink_.send(node->stream, std::move(message));
  return true;
}

void Fleet::OnMessage(StreamId stream, const std::string& attested, const v1::NodeMessage& message) {
  const auto known = streams_.find(stream);
  if (message.has_hello() != (known == streams_.end())) return sink_.close(stream, "a stream begins with one Hello");
  if (message.has_hello()) return OnHello(stream, attested, message.hello());
  if (message.has_answer()) return OnAnswer(stream, known->second, message.answer());
  if (message.has_usage()) OnUsage(known->second, message.usage());
}

void Fleet::Refuse(StreamId stream, const std::string& why) {
  ++counts_.streams_refused;
  Log(LogLevel::kWarning, "sync", "a stream is refused: ", why);
  sink_.close(stream, why);
}

void Fleet::OnHello(StreamId stream, const std::string& attested, const v1::Hello& hello) {
  if (hello.node().empty() || (!attested.empty() && hello.node() != attested)) {
    return Refuse(stream,
                  absl::StrCat("its token is for node '", attested, "', and it says that it is '", hello.node(), "'"));
  }
  if (stream_turns_.TakeMs(NowMs()) > 0) {
    stream_turns_.GiveBack();
    ++counts_.streams_refused;
    return sink_.close(stream, "too many nodes at once: come again");
  }
  Node& node = nodes_[hello.node()];
  node.name = hello.node();
  if (!node.session.Begin(hello, &sets_)) return sink_.close(stream, "the version is not that of what is held");
  if (node.stream != 0) {
    streams_.erase(node.stream);
    sink_.close(node.stream, "a newer stream of this node has begun");
  }
  ++counts_.streams;
  node.stream = stream;
  node.told_pods = nullptr;
  streams_[stream] = &node;
  Log(LogLevel::kInfo, "sync", "node ", node.name, " (", hello.program(), ") holds version ",
      hello.version().empty() ? "none" : hello.version());
  static const SharedMessage welcome = [] {
    auto message = std::make_shared<v1::OperatorMessage>();
    message->mutable_welcome()->set_program("kvartal-operator");
    return message;
  }();
  sink_.send(stream, welcome);
  if (keys_) sink_.send(stream, keys_);
  if (node.target) {
    for (const auto& [key, object] : node.target->set.objects()) sink_.on_progress(key);
  }
  Pump(&node);
  TellPodsOrWait(&node);
}

void Fleet::OnAnswer(StreamId stream, Node* node, const v1::Answer& answer) {
  const auto changed = node->session.OnAnswer(answer, &sets_);
  if (!changed) return sink_.close(stream, "an answer to nothing that was sent");
  ++(answer.reason().empty() && answer.refused().empty() ? counts_.acks : counts_.nacks);
  if (!answer.reason().empty())
    Log(LogLevel::kWarning, "sync", "node ", node->name, " refused version ", answer.version(), ": ", answer.reason());
  if (!answer.refused().empty()) {
    Log(LogLevel::kWarning, "sync", "node ", node->name, " takes version ", answer.version(), " but for ",
        answer.refused_size(), " objects, the first ", answer.refused(0).key(), ": ", answer.refused(0).reason());
  }
  for (const std::string& key : *changed) sink_.on_progress(key);
  Pump(node);
}

void Fleet::OnUsage(Node* node, const v1::Usage& usage) {
  std::map<std::string, v1::TenantUsage> now;
  for (const v1::TenantUsage& tenant : usage.tenants()) {
    // A daemon of a version before names everybody.
    const bool holds = tenant.hbm_bytes() + tenant.dram_bytes() + tenant.nvme_bytes() > 0;
    if (holds || tenant.above_limit()) now[tenant.tenant()] = tenant;
  }
  std::set<std::string> above;  // that are now, or were, and not both
  for (const auto* side : {&now, &node->usage}) {
    for (const auto& [name, tenant] : *side) {
      if (tenant.above_limit() && !above.insert(name).second) above.erase(name);
    }
  }
  node->usage = std::move(now);
  for (const std::string& tenant : above) sink_.on_progress(absl::StrCat("TenantKVPolicy/", tenant));
}

// The same bytes for all nodes that go from one version to the other.
SharedMessage Fleet::DeltaFor(const Node& node) {
  const auto known = deltas_.find({node.session.version(), node.target->version});
  if (known != deltas_.end()) return known->second;
  auto message = std::make_shared<v1::OperatorMessage>();
  *message->mutable_update() = node.session.DeltaTo(node.target->set);
  if (deltas_.size() >= kDeltasKept) deltas_.clear();
  deltas_[{node.session.version(), node.target->version}] = message;
  return message;
}

void Fleet::Pump(Node* node) {
  if (node->stream == 0 || node->target == nullptr || node->waits) return;
  if (!node->session.Wants(node->target->version)) return;
  const SharedMessage message = DeltaFor(*node);
  const v1::Update& update = message->update();
  if (update.changed_size() > kSmallDeltaObjects && set_turns_.TakeMs(NowMs()) > 0) {
    set_turns_.GiveBack();
    node->waits = true;
    waiting_.push_back(node->name);
    return;
  }
  node->session.OnSent(message, node->target->hashes, NowMs());
  ++counts_.updates;
  counts_.update_objects += static_cast<uint64_t>(update.changed_size() + update.removed_size());
  sink_.send(node->stream, message);
}

void Fleet::OnEnd(StreamId stream) {
  const auto known = streams_.find(stream);
  if (known == streams_.end()) return;
  Log(LogLevel::kInfo, "sync", "node ", known->second->name, " is away");
  known->second->stream = 0;
  known->second->session.End();
  const SharedNode target = known->second->target;
  streams_.erase(known);
  if (target != nullptr && !target->pool.empty()) sink_.on_progress(PoolKey(target->pool));
}

void Fleet::Tick() {
  const int64_t now_ms = NowMs();
  for (size_t left = waiting_.size(); left > 0; --left) {
    const std::string name = std::move(waiting_.front());
    waiting_.pop_front();
    const auto node = nodes_.find(name);
    if (node == nodes_.end()) continue;
    node->second.waits = false;
    Pump(&node->second);
    if (node->second.waits) break;  // at the end of the queue now: so are those before it, each once
  }
  // Whoever has to wait on keeps its place.
  std::erase_if(pods_waiting_, [&](const std::string& name) {
    const auto node = nodes_.find(name);
    if (node == nodes_.end()) return true;
    node->second.pods_wait = !TellPods(&node->second);
    return !node->second.pods_wait;
  });
  std::vector<StreamId> overdue;
  for (const auto& [stream, node] : streams_) {
    if (node->session.Overdue(now_ms)) overdue.push_back(stream);
  }
  for (const StreamId stream : overdue) {
    sink_.close(stream, "no answer in time");
    OnEnd(stream);
  }
}

template <typename Progress, typename Each>
void Fleet::CountNodes(const std::string& pool, const std::string& key, Progress* progress, Each each) const {
  const auto nodes = of_pool_.find(pool);
  if (nodes == of_pool_.end()) return;
  const reconcile::CompiledNode* asked = nullptr;  // the nodes of a pool share what they are to enforce
  bool has = false;
  for (const Node* node : nodes->second) {
    if (asked != node->target.get()) {
      asked = node->target.get();
      has = asked->set.objects().contains(key);
    }
    each(*node, has);
    if (!has) continue;
    NodeSession::Standing standing = node->session.StandingOf(key, asked->set, asked->version);
    switch (standing.state) {
      case NodeSession::State::kApplied:
        ++progress->applied;
        break;
      case NodeSession::State::kRefused:
        progress->rejected.push_back({node->name, std::move(standing.reason)});
        break;
      case NodeSession::State::kAwaited:
        progress->awaited.push_back(node->name);
        break;
    }
  }
}

reconcile::PolicyProgress Fleet::ProgressOf(const std::string& ns, const std::string& name,
                                            const std::vector<std::string>& pools) const {
  reconcile::PolicyProgress progress;
  const std::string key = PolicyKey(ns, name), tenant = absl::StrCat(ns, "/", name);
  const auto add_use = [&](const Node& node, bool is_to_have_it) {
    const auto usage = is_to_have_it ? node.usage.find(tenant) : node.usage.end();
    if (usage == node.usage.end()) return;
    progress.hbm_bytes += usage->second.hbm_bytes();
    progress.dram_bytes += usage->second.dram_bytes();
    progress.nvme_bytes += usage->second.nvme_bytes();
    if (usage->second.above_limit()) progress.above_limit.push_back(node.name);
  };
  for (const std::string& pool : pools) CountNodes(pool, key, &progress, add_use);
  return progress;
}

reconcile::PoolProgress Fleet::ProgressOfPool(const std::string& pool) const {
  reconcile::PoolProgress progress;
  CountNodes(pool, PoolKey(pool), &progress, [&](const Node& node, bool) { progress.connected += node.stream != 0; });
  return progress;
}

bool Fleet::IsHeld(const std::string& ns, const std::string& name) const {
  const std::string key = PolicyKey(ns, name);
  for (const auto& [stream, node] : streams_) {
    if (node->session.MayHold(key) || (node->target != nullptr && node->target->set.objects().contains(key)))
      return true;
  }
  return false;
}

FleetStats Fleet::stats() const {
  FleetStats stats = counts_;
  stats.connected = streams_.size();
  for (const auto& [name, pods] : pods_) {
    stats.pods += pods->uids().size();
    if (pods->uids().size() > kPodsOfNodeMax) ++stats.nodes_without_pods;
  }
  for (const auto& [name, node] : nodes_) {
    if (node.target == nullptr) continue;
    ++stats.nodes;
    if (node.stream == 0 && !node.target->pool.empty()) ++stats.away;
    if (node.session.version() == node.target->version) ++stats.current;
    if (node.session.rejected_version() == node.target->version) ++stats.rejected;
  }
  return stats;
}

}  // namespace kvartal::sync
