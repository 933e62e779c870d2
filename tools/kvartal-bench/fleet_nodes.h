// Nodes as an operator sees them, thousands in one process: each has a stream of its own and takes what it is sent.
// Confined to the loop it is given.
// Invariant: a node answers an update only after it has made the set of it, as a daemon does; sets are shared between
// nodes that hold the same, since nothing of them is enforced here.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "crds/policy_set.h"
#include "daemon/base/event_loop.h"
#include "daemon/control/sync_stream.h"

namespace kvartal::bench {

class FleetNodes {
 public:
  FleetNodes(EventLoop* loop, const Clock* clock, std::string address, size_t count);

  // Dials all of them, each again when its stream ends, as a daemon waits.
  void Start();
  size_t connected() const { return connected_; }
  // Nodes that hold this version.
  size_t Holding(const std::string& version) const;
  size_t with_any_set() const { return with_any_set_; }
  // When each update since the last call was answered.
  std::vector<int64_t> TakeAnswers() { return std::exchange(answers_ns_, {}); }
  // Streams that began within the busiest second since the last call.
  size_t TakeStreamsPeak();
  static std::string NameOf(size_t node) { return "node-" + std::to_string(node); }

 private:
  struct Node {
    control::SyncChannel channel;
    std::unique_ptr<control::SyncStream> stream;
    std::shared_ptr<const crds::PolicySet> set;
    std::string version;
    bool welcome = false;
    int64_t redial_ms = 0;
  };
  void Dial(size_t node);
  void OnMessage(size_t node, const sync::v1::OperatorMessage& message);
  void OnEnd(size_t node);

  EventLoop* const loop_;
  const Clock* const clock_;
  const std::string address_;
  std::vector<Node> nodes_;
  std::map<std::string, std::shared_ptr<const crds::PolicySet>> sets_;  // the last few, by version
  std::vector<int64_t> answers_ns_;
  std::map<int64_t, size_t> begun_;  // streams by second
  size_t connected_ = 0, with_any_set_ = 0;
  std::minstd_rand chance_;
};

}  // namespace kvartal::bench
