// Writes to policies: what became of them, and the finalizer that lets nodes hear of a deletion first.
// Confined to the operator's loop; each Reconcile looks at the caches and does what is due, and no more.
// Invariants: one policy is written at most every kStatusIntervalMs; what is said already is not written; a deletion
// waits for nodes at most kFinalizeMaxMs; a paused policy is not written at all.
#pragma once

#include <map>
#include <set>
#include <string>

#include "operator/kube/controller.h"
#include "operator/kube/event_recorder.h"
#include "operator/process/decider.h"
#include "operator/sync/fleet.h"

namespace kvartal::process {

inline constexpr const char* kWriterName = "kvartal-operator";
inline constexpr const char* kFinalizer = "kvartal.dev/nodes";

struct StatusWriterStats {
  uint64_t status_writes = 0, finalizer_writes = 0, failures = 0;
};

class StatusWriter {
 public:
  StatusWriter(kube::ApiClient* client, EventLoop* loop, const Clock* clock, const ClusterWatch* watch,
               const Decider* decider, const sync::Fleet* fleet);
  ~StatusWriter();
  StatusWriter(const StatusWriter&) = delete;
  StatusWriter& operator=(const StatusWriter&) = delete;

  // From now on. Until kReturnMs later, nodes that are not connected are expected back and not missed.
  void Start();
  // When what is being written has ended, and Events of it are told, or kStopEventsMs later.
  void Stop(absl::AnyInvocable<void()> stopped);
  // Something about this policy may have to be told.
  void Touch(const kube::ObjectKey& key) { TouchName(key.ToString()); }
  void TouchName(const std::string& name) { controller_.AddAfter(name, kStatusSettleMs); }
  // Usage is renewed now and then. To be called every few seconds.
  void RefreshUsage();

  kube::ControllerStats work() const { return controller_.stats(); }
  const StatusWriterStats& stats() const { return stats_; }

 private:
  using Finish = kube::Controller::Finish;
  using Object = std::shared_ptr<const nlohmann::json>;

  void Reconcile(const std::string& name, Finish finish);
  void Finalize(const kube::ObjectKey& key, const Object& object, Finish finish);
  void PatchFinalizers(const kube::ObjectKey& key, const nlohmann::json& object, nlohmann::json finalizers,
                       Finish finish);
  void Tell(const kube::ObjectKey& key, const Object& object, Finish finish);
  void Apply(const kube::ObjectKey& key, const Object& object, const nlohmann::json& status, Finish finish);
  void TellEvents(const nlohmann::json& before, const nlohmann::json& after);
  bool SomeAreOnTheirWayBack() const;
  void EndStop();
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  kube::ApiClient* const client_;
  EventLoop* const loop_;
  const Clock* const clock_;
  const ClusterWatch* const watch_;
  const Decider* const decider_;
  const sync::Fleet* const fleet_;
  kube::EventRecorder events_;
  kube::TokenBucket usage_turns_{kUsageWritesPerSecond, kUsageWritesBurst};
  int64_t returned_ms_ = 0;                          // until then nodes may be on their way back
  std::map<std::string, int64_t> written_ms_;        // when the status was written last
  std::map<std::string, int64_t> usage_written_ms_;  // when it last told of usage, or was looked at for that
  std::set<std::string> usage_due_;
  std::map<std::string, int64_t> deleting_ms_;  // since when we see it being deleted
  StatusWriterStats stats_;
  absl::AnyInvocable<void()> stopped_;
  EventLoop::TimerId stop_timer_ = 0;
  kube::Controller controller_;
};

}  // namespace kvartal::process
