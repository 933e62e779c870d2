// All nodes: which of them are there, what each is to enforce, and how far they are. Decides what to send to whom and
// when; the server beside it sends.
// Confined to the operator's loop; time comes from its clock.
// Invariants: a node is sent its own set and its own pods and no other's; a node that was never given a set to enforce
// is sent neither; nothing is sent of pods while they are not known; no set waits for pods; of two streams of one node
// the newer is its stream.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crds/pod_set.h"
#include "daemon/base/clock.h"
#include "operator/kube/token_bucket.h"
#include "operator/reconcile/compile_cluster.h"
#include "operator/reconcile/policy_status.h"
#include "operator/reconcile/pool_status.h"
#include "operator/sync/limits.h"
#include "operator/sync/node_session.h"

namespace kvartal::sync {

using StreamId = uint64_t;
using SharedNode = std::shared_ptr<const reconcile::CompiledNode>;
using SharedPods = std::shared_ptr<const crds::PodSet>;

struct FleetStats {
  size_t nodes = 0, connected = 0;
  size_t away = 0;      // of a pool, and not connected
  size_t current = 0;   // hold what they are to
  size_t rejected = 0;  // refused what they are to, or a part of it
  uint64_t streams = 0, streams_refused = 0;
  uint64_t updates = 0, update_objects = 0, acks = 0, nacks = 0;
  size_t pods = 0;                // that are known to be bound to a node
  uint64_t pod_updates = 0;       // sent
  size_t nodes_without_pods = 0;  // have more than can be told
};

class Fleet {
 public:
  struct Sink {
    std::function<void(StreamId, SharedMessage)> send;
    std::function<void(StreamId, const std::string& why)> close;
    // Something of the object with this key of a set has changed on a node.
    std::function<void(const std::string& key)> on_progress;
  };

  Fleet(const Clock* clock, Sink sink) : clock_(clock), sink_(std::move(sink)) {}

  // What every node is to enforce. A node that is not named keeps what it has.
  void SetTargets(const std::map<std::string, SharedNode>& targets);
  // What tokens of this cluster are signed with: told to every node, now and when it comes.
  void SetKeys(const std::string& issuer, const std::string& keys);
  // The pods that are bound to each node now; a node that is not named has none. Told to each node, now and when it
  // comes, as soon as this was called once.
  void SetPods(std::map<std::string, SharedPods> pods);
  // The same of these nodes alone.
  void ChangePods(const std::map<std::string, SharedPods>& changed);
  // `attested`: the node that the stream was proven to be; "": nothing was asked.
  void OnMessage(StreamId stream, const std::string& attested, const v1::NodeMessage& message);
  // It could not be proven to be any node.
  void Refuse(StreamId stream, const std::string& why);
  void OnEnd(StreamId stream);
  // To be called every kTickMs.
  void Tick();

  // Of one policy on the nodes of these pools.
  reconcile::PolicyProgress ProgressOf(const std::string& ns, const std::string& name,
                                       const std::vector<std::string>& pools) const;
  // Of one pool on its nodes.
  reconcile::PoolProgress ProgressOfPool(const std::string& pool) const;
  // Whether a node that is connected has this policy, was sent it, or is about to be.
  bool IsHeld(const std::string& ns, const std::string& name) const;
  FleetStats stats() const;

 private:
  struct Node {
    std::string name;
    SharedNode target;
    NodeSession session;
    StreamId stream = 0;  // 0: away
    std::map<std::string, v1::TenantUsage> usage;
    bool waits = false;      // for its turn, in waiting_
    bool pods_wait = false;  // the same in pods_waiting_
    SharedPods told_pods;    // on this stream; nullptr: none
    int64_t told_pods_ms = 0;
  };

  void OnHello(StreamId stream, const std::string& attested, const v1::Hello& hello);
  void OnAnswer(StreamId stream, Node* node, const v1::Answer& answer);
  void OnUsage(Node* node, const v1::Usage& usage);
  void Pump(Node* node);
  // False: not yet, though there is something to be told.
  bool TellPods(Node* node);
  // Behind those that wait already.
  void TellPodsOrWait(Node* node);
  SharedMessage DeltaFor(const Node& node);
  // How far each node of the pool is with this key. `each` hears of all of them, and whether they are to have it.
  template <typename Progress, typename Each>
  void CountNodes(const std::string& pool, const std::string& key, Progress* progress, Each each) const;
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  const Clock* const clock_;
  const Sink sink_;
  std::map<std::string, Node> nodes_;
  std::map<StreamId, Node*> streams_;
  std::map<std::string, std::vector<const Node*>> of_pool_;
  std::deque<std::string> waiting_;
  SharedMessage keys_;
  bool knows_pods_ = false;
  std::map<std::string, SharedPods> pods_;  // by node, of those that have any
  std::deque<std::string> pods_waiting_;    // nodes that have something to be told of theirs
  std::map<std::pair<std::string, std::string>, SharedMessage> deltas_;  // by base and version
  SharedSets sets_;
  kube::TokenBucket stream_turns_{kStreamsPerSecond, kStreamsBurst};
  kube::TokenBucket set_turns_{kWholeSetsPerSecond, kWholeSetsBurst};
  kube::TokenBucket pod_turns_{kPodsPerSecond, kPodsBurst};
  FleetStats counts_;
};

}  // namespace kvartal::sync
