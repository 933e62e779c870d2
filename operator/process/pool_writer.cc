#include "operator/process/pool_writer.h"

#include <utility>

#include "daemon/base/log.h"
#include "operator/process/status_writer.h"

namespace kvartal::process {
namespace {

using kube::ErrorKind;
using kube::ReconcileResult;
using nlohmann::json;

}  // namespace

PoolWriter::PoolWriter(kube::ApiClient* client, EventLoop* loop, const Clock* clock, const ClusterWatch* watch,
                       const Decider* decider, const sync::Fleet* fleet)
    : client_(client),
      clock_(clock),
      watch_(watch),
      decider_(decider),
      fleet_(fleet),
      controller_(loop, clock, kStatusesAtOnce,
                  [this](const std::string& name, Finish finish) { Reconcile(name, std::move(finish)); }) {}

void PoolWriter::Start() {
  returned_ms_ = NowMs() + kReturnMs;
  controller_.Start();
}

bool PoolWriter::IsDue(const std::string& name, int64_t since_ms, int64_t interval_ms) {
  const int64_t wait_ms = since_ms + interval_ms - NowMs();
  if (wait_ms > 0) controller_.AddAfter(name, wait_ms);
  return wait_ms <= 0;
}

void PoolWriter::Reconcile(const std::string& name, Finish finish) {
  const auto object = watch_->pools().Find({"", name});
  if (object == nullptr || reconcile::IsBeingDeleted(*object)) {
    written_ms_.erase(name);
    return finish(ReconcileResult::kDone);
  }
  const reconcile::PoolVerdict* verdict = decider_->VerdictOnPool(*object);
  if (verdict == nullptr) return finish(ReconcileResult::kDone);  // it is about to be, and that comes here
  const auto written = written_ms_.find(name);
  if (written != written_ms_.end() && !IsDue(name, written->second, kStatusIntervalMs))
    return finish(ReconcileResult::kLater);
  const reconcile::PoolProgress progress = fleet_->ProgressOfPool(name);
  // Our predecessor had heard of every node; that we have not yet is no news.
  if (NowMs() < returned_ms_ && !progress.awaited.empty() && progress.rejected.empty() &&
      reconcile::WasTrue(*object, "Ready")) {
    controller_.AddAfter(name, returned_ms_ - NowMs());
    return finish(ReconcileResult::kLater);
  }
  std::optional<json> status = reconcile::PoolStatusToApply(*object, *verdict, progress, clock_->WallMs());
  if (!status && reconcile::ConnectedDiffers(*object, *verdict, progress)) {
    const int64_t since_ms = written_ms_.try_emplace(name, NowMs()).first->second;
    if (!IsDue(name, since_ms, kConnectedIntervalMs)) return finish(ReconcileResult::kLater);
    status = reconcile::WholePoolStatus(*object, *verdict, progress, clock_->WallMs());
  }
  if (!status) return finish(ReconcileResult::kDone);
  Apply(name, *status, std::move(finish));
}

void PoolWriter::Apply(const std::string& name, const json& status, Finish finish) {
  ++stats_.status_writes;
  written_ms_[name] = NowMs();
  client_->ApplyStatus(kPools, status, kWriterName,
                       [this, name, finish = std::move(finish)](const kube::ApiError& error, const json&) {
                         // Gone, or another object by now: the watch tells.
                         if (error.ok() || error.kind == ErrorKind::kNotFound || error.kind == ErrorKind::kConflict)
                           return finish(ReconcileResult::kDone);
                         ++stats_.failures;
                         Log(LogLevel::kWarning, "operator", "KVNodePool ", name, ": its status: ", error.ToString());
                         controller_.PauseFor(error.retry_after_ms.value_or(0));
                         finish(ReconcileResult::kRetry);
                       });
}

}  // namespace kvartal::process
