// The operator's stream as a feed: dials it, takes deltas of the node's set, keeps the last good set on disk, and says
// what became of each; the same of the keys that tokens are signed with. When the operator is away, what was last
// accepted holds, for ever.
// Confined to the engine loop; manifests are read and the set is written on a thread of its own.
// Invariants: held_ is the set in force; an update is answered once, after the set it makes is on the disk; a set that
// is good by itself and waits for a restart is on the disk, and is what Begin finds.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "crds/policy_set.h"
#include "daemon/base/worker_pool.h"
#include "daemon/control/kept_file.h"
#include "daemon/control/policy_feed.h"
#include "daemon/control/sync_stream.h"

namespace kvartal::control {

struct StreamFeedOptions {
  StreamOptions stream;
  std::string keep_in;  // folder of the last good set
  std::string node;
  std::string program;
  int64_t redial_ms = 0;  // tests shorten it; 0: kRedialMinMs
};

class StreamFeed final : public PolicyFeed {
 public:
  StreamFeed(StreamFeedOptions options, const policy::NodeCapacity& capacity, const Clock* clock);
  ~StreamFeed() override;

  absl::StatusOr<LoadedPolicy> Begin() override;
  void Watch(EventLoop* loop, Offer offer) override;
  void Reload(absl::AnyInvocable<void(absl::Status)> done) override;
  void StopWatching() override;
  bool busy() const override { return worker_ != nullptr && worker_->Pending() > 0; }
  void WatchKeys(OnKeys on_keys) override;
  void TellUse(const std::vector<TenantUse>& use) override;
  std::string note() const override;

 private:
  void Dial();
  void RedialLater();
  void OnMessage(sync::v1::OperatorMessage message);
  void OnUpdate(const sync::v1::Update& update);
  void OnRead(crds::PolicySet made, absl::StatusOr<LoadedPolicy> read);
  void OnKeysCame(const sync::v1::Jwks& jwks);
  void OnEnd(const absl::Status& why);
  sync::v1::NodeMessage Hello() const;
  int64_t NowMs() const { return clock_->MonotonicNs() / 1'000'000; }

  const StreamFeedOptions options_;
  const policy::NodeCapacity configured_;
  const Clock* const clock_;
  const KeptFile kept_set_, kept_keys_;
  policy::NodeCapacity begun_;  // what the daemon has begun with: a set that states no pool is of this
  crds::PolicySet held_;
  bool holds_ = false;    // a set, be it an empty one
  bool reading_ = false;  // an update is on its way to its answer
  std::string rejected_version_, rejected_reason_;
  sync::v1::Jwks keys_;
  OnKeys on_keys_;

  EventLoop* loop_ = nullptr;
  Offer offer_;
  bool watching_ = false;
  SyncChannel channel_;
  std::unique_ptr<SyncStream> stream_;
  EventLoop::TimerId timer_ = 0;
  int64_t redial_ms_ = 0;  // the next wait, before chance
  int64_t dialled_ms_ = 0;
  int64_t away_since_ms_ = 0;  // 0: the operator has spoken on the present stream
  std::string last_error_;
  std::vector<TenantUse> told_use_;
  int64_t told_use_ms_ = 0;
  std::minstd_rand chance_;
  std::unique_ptr<WorkerPool> worker_;  // last: its thread uses what is above
};

// What a set comes to on a node; `begun` is the capacity where it states no pool.
absl::StatusOr<LoadedPolicy> LoadSet(const crds::PolicySet& set, const policy::NodeCapacity& configured,
                                     const policy::NodeCapacity& begun);

}  // namespace kvartal::control
