#include "operator/kube/controller.h"

#include <utility>

#include "daemon/base/log.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {

Controller::Controller(EventLoop* loop, const Clock* clock, size_t at_once, Reconcile reconcile)
    : loop_(loop), clock_(clock), at_once_(at_once), reconcile_(std::move(reconcile)) {}

Controller::~Controller() {
  *alive_ = false;
  loop_->CancelTimer(timer_);
  loop_->CancelTimer(stop_timer_);
}

void Controller::Add(const std::string& key) {
  queue_.Add(key, NowMs());
  Pump();
}

void Controller::AddAfter(const std::string& key, int64_t delay_ms) {
  queue_.AddAfter(key, delay_ms, NowMs());
  Pump();
}

void Controller::Start() {
  state_ = State::kRunning;
  Pump();
}

// From the loop, not from within Add: a reconcile that adds keys would run others inside itself.
void Controller::Pump() {
  if (state_ != State::kRunning || turn_is_due_) return;
  loop_->CancelTimer(timer_);
  if (const int64_t wait_ms = paused_until_ms_ - NowMs(); wait_ms > 0) {
    timer_ = loop_->RunAfterMs(wait_ms, [this] { Pump(); });
    return;
  }
  const std::optional<int64_t> due_ms = queue_.NextDueMs();
  if (queue_.depth() > 0 && running_ < at_once_) {
    // Behind what the loop has to do already: a timer that is due at once would be run by a turn that never ends.
    turn_is_due_ = true;
    loop_->Post([this, alive = alive_] {
      if (*alive) Turn();
    });
  } else if (due_ms) {
    timer_ = loop_->RunAfterMs(std::max<int64_t>(0, *due_ms - NowMs()), [this] {
      turn_is_due_ = true;
      Turn();
    });
  }
}

void Controller::PauseFor(int64_t ms) {
  paused_until_ms_ = std::max(paused_until_ms_, NowMs() + ms);
  Pump();
}

bool Controller::MayBegin() const {
  return state_ == State::kRunning && running_ < at_once_ && NowMs() >= paused_until_ms_;
}

void Controller::Turn() {
  for (size_t begun = 0; begun < kReconcilesPerTurn && MayBegin(); ++begun) {
    const std::optional<std::string> key = queue_.Take(NowMs());
    if (!key) break;
    ++running_;
    reconcile_(*key, [this, alive = alive_, key = *key](ReconcileResult result) {
      if (*alive) OnFinish(key, result);
    });
  }
  turn_is_due_ = false;
  Pump();
}

void Controller::OnFinish(const std::string& key, ReconcileResult result) {
  --running_;
  queue_.Done(key, NowMs());
  ++(result == ReconcileResult::kRetry ? failed_ : done_);
  if (result == ReconcileResult::kDone) queue_.Forget(key);
  if (result == ReconcileResult::kRetry) queue_.Retry(key, NowMs());
  if (state_ == State::kStopping && running_ == 0) return EndStop();
  Pump();
}

void Controller::Stop(absl::AnyInvocable<void()> stopped) {
  loop_->CancelTimer(timer_);
  state_ = State::kStopping;
  stopped_ = std::move(stopped);
  if (running_ == 0) return EndStop();
  stop_timer_ = loop_->RunAfterMs(kStopMs, [this] {
    Log(LogLevel::kWarning, "kube", running_, " reconciles did not end in time");
    EndStop();
  });
}

void Controller::EndStop() {
  state_ = State::kStopped;
  loop_->CancelTimer(stop_timer_);
  if (stopped_) std::exchange(stopped_, nullptr)();
}

ControllerStats Controller::stats() const { return {done_, failed_, queue_.stats(NowMs())}; }

}  // namespace kvartal::kube
