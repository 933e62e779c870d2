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
  if (state_ != State::kRunning) return;
  loop_->CancelTimer(timer_);
  const std::optional<int64_t> due_ms = queue_.NextDueMs();
  const bool ready = queue_.depth() > 0 && running_ < at_once_;
  if (!ready && !due_ms) return;
  timer_ = loop_->RunAfterMs(ready ? 0 : std::max<int64_t>(0, *due_ms - NowMs()), [this] {
    while (state_ == State::kRunning && running_ < at_once_) {
      const std::optional<std::string> key = queue_.Take(NowMs());
      if (!key) break;
      ++running_;
      reconcile_(*key, [this, alive = alive_, key = *key](ReconcileResult result) {
        if (*alive) OnFinish(key, result);
      });
    }
    Pump();
  });
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
