// The operator's stream as a feed: dials it, takes deltas of the node's set, tenant by tenant (set_fit), keeps what is
// in force on disk, and says what became of each; the same of the keys that tokens are signed with, and of the pods of
// this node. When the operator is away, what was last accepted holds, for ever.
// Confined to the engine loop; manifests are read and the set is written on a thread of its own.
// Invariants: held_ is the set in force, and but for an update on its way to its answer what the disk has; an update is
// answered once, after that; what is on the disk and cannot be kept any more costs its tenant, never the start.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "crds/policy_set.h"
#include "daemon/base/worker_pool.h"
#include "daemon/control/kept_file.h"
#include "daemon/control/kept_latest.h"
#include "daemon/control/policy_feed.h"
#include "daemon/control/set_fit.h"
#include "daemon/control/stream_limits.h"
#include "daemon/control/sync_stream.h"
#include "daemon/control/told_pods.h"

namespace kvartal::control {

struct StreamFeedOptions {
  StreamOptions stream;
  std::string keep_in;  // folder of the last good set
  std::string node;
  std::string program;
  // Tests shorten them.
  int64_t redial_ms = kRedialMinMs;
  int64_t patience_ms = kRedialMaxMs;  // with a stream on which nobody speaks
};

class StreamFeed final : public PolicyFeed {
 public:
  StreamFeed(StreamFeedOptions options, const policy::NodeCapacity& capacity, const Clock* clock);
  ~StreamFeed() override;

  absl::StatusOr<LoadedPolicy> Begin() override;
  void Watch(EventLoop* loop, Offer offer) override;
  void Reload(absl::AnyInvocable<void(absl::Status)> done) override;
  void StopWatching() override;
  bool busy() const override { return (worker_ != nullptr && worker_->Pending() > 0) || channel_.ending->count() > 0; }
  void WatchKeys(const OnKeys& on_keys) override;
  void WatchPods(const OnGonePods& on_gone) override;
  void TellUse(const std::vector<TenantUse>& use) override;
  std::optional<uint64_t> away_ms() const override;
  std::string note() const override;

 private:
  // Patient: for as long as it takes, but the files of the stream are read again from time to time. Else to be told
  // why there is no connection, if there is none.
  void Dial(bool patient);
  void BePatient();
  void RedialLater();
  void OnMessage(const sync::v1::OperatorMessage& message);
  void OnUpdate(const sync::v1::Update& update);
  void OnRead(const std::string& version, absl::StatusOr<SetFit> read);
  void OnKeysCame(const sync::v1::Jwks& jwks);
  void OnPodsCame(const sync::v1::Pods& pods);
  void TellGonePods();
  void OnEnd(const absl::Status& why);
  sync::v1::NodeMessage Hello() const;
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  const StreamFeedOptions options_;
  const policy::NodeCapacity configured_;
  const Clock* const clock_;
  const KeptFile kept_set_;
  KeptLatest kept_keys_, kept_pods_;
  policy::NodeCapacity begun_;  // what the daemon has begun with
  crds::PolicySet held_;
  bool holds_ = false;                              // a set, be it an empty one
  bool reading_ = false;                            // an update is on its way to its answer
  std::string rejected_version_, rejected_reason_;  // of the last that was not taken whole
  std::vector<sync::v1::Refused> refused_;
  std::string not_in_force_;  // the same in words
  sync::v1::Jwks keys_;
  OnKeys on_keys_;
  ToldPods pods_;
  OnGonePods on_gone_pods_;

  EventLoop* loop_ = nullptr;
  Offer offer_;
  // Shared with what the worker hands back, which may come when this object is gone.
  const std::shared_ptr<bool> watching_ = std::make_shared<bool>(false);
  SyncChannel channel_;
  std::unique_ptr<SyncStream> stream_;
  EventLoop::TimerId timer_ = 0;
  int64_t redial_ms_ = 0;  // the next wait, before chance
  int64_t dialled_ms_ = 0;
  bool asks_why_ = false;      // by the present stream
  int64_t away_since_ms_ = 0;  // 0: the operator has spoken on the present stream
  std::string last_error_;
  std::vector<TenantUse> told_use_;
  int64_t told_use_ms_ = 0;
  std::minstd_rand chance_;
  std::unique_ptr<WorkerPool> worker_;  // last: its thread uses what is above
};

}  // namespace kvartal::control
