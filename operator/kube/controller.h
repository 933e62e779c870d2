// Turns keys that changed into calls of one reconcile function, a few at a time, and again after failures. Nothing is
// reconciled merely because time has passed: a reflector whose watch was lost lists anew and tells what it missed.
// Confined to its loop.
// Invariants: one key is never reconciled twice at once; nothing is reconciled before Start or after Stop began; a turn
// of the loop begins kReconcilesPerTurn at most; Stop ends when the last reconcile has, or kStopMs later.
#pragma once

#include <functional>
#include <string>

#include "daemon/base/event_loop.h"
#include "operator/kube/work_queue.h"

namespace kvartal::kube {

enum class ReconcileResult {
  kDone,
  kRetry,  // it failed: later, and later each time
  kLater,  // it is not time yet, and was added for when it is: what failed before it counts as before
};

struct ControllerStats {
  uint64_t done = 0, failed = 0;
  WorkQueueStats queue;
};

class Controller {
 public:
  using Finish = std::function<void(ReconcileResult)>;
  // Level-based: looks at the stores, not at what has changed. Calls `finish` exactly once, also later.
  using Reconcile = std::function<void(const std::string& key, Finish finish)>;

  Controller(EventLoop* loop, const Clock* clock, size_t at_once, Reconcile reconcile);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  void Add(const std::string& key);
  void AddAfter(const std::string& key, int64_t delay_ms);
  // Nothing is begun for so long: the server has asked for it.
  void PauseFor(int64_t ms);
  // Keys that were added before wait for it: until the caches are filled and we lead.
  void Start();
  // `stopped` is called once nothing is being reconciled any more, or when that takes too long.
  void Stop(absl::AnyInvocable<void()> stopped);

  ControllerStats stats() const;

 private:
  void Pump();
  void Turn();
  bool MayBegin() const;
  void OnFinish(const std::string& key, ReconcileResult result);
  void EndStop();
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  EventLoop* const loop_;
  const Clock* const clock_;
  const size_t at_once_;
  const Reconcile reconcile_;
  WorkQueue queue_;
  enum class State { kNew, kRunning, kStopping, kStopped } state_ = State::kNew;
  absl::AnyInvocable<void()> stopped_;
  EventLoop::TimerId timer_ = 0, stop_timer_ = 0;
  int64_t paused_until_ms_ = 0;
  bool turn_is_due_ = false;  // one is posted, or under way
  size_t running_ = 0;
  uint64_t done_ = 0, failed_ = 0;
  // Outlived by reconciles that finish late; they find it false.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kvartal::kube
