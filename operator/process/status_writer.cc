#include "operator/process/status_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "operator/kube/json_fields.h"

namespace kvartal::process {
namespace {

using kube::ErrorKind;
using kube::FieldAt;
using kube::ReconcileResult;
using kube::TextAt;
using nlohmann::json;

kube::ObjectKey KeyOfName(const std::string& name) {
  const size_t slash = name.find('/');
  return {name.substr(0, slash), name.substr(slash + 1)};
}

json FinalizersOf(const json& object) {
  const json* finalizers = FieldAt(object, {"metadata", "finalizers"});
  return finalizers != nullptr && finalizers->is_array() ? *finalizers : json::array();
}

bool HasOurs(const json& finalizers) {
  return std::find(finalizers.begin(), finalizers.end(), json(kFinalizer)) != finalizers.end();
}

json Without(const json& finalizers) {
  json left = json::array();
  for (const json& one : finalizers) {
    if (one != kFinalizer) left.push_back(one);
  }
  return left;
}

std::vector<std::string> PoolsOf(const reconcile::PolicyVerdict& verdict) {
  std::vector<std::string> pools;
  if (!verdict.in_force) return pools;
  for (const crds::PoolClaim& claim : verdict.in_force->pools) pools.push_back(claim.pool_ref);
  return pools;
}

}  // namespace

StatusWriter::StatusWriter(kube::ApiClient* client, EventLoop* loop, const Clock* clock, const ClusterWatch* watch,
                           const Decider* decider, const sync::Fleet* fleet)
    : client_(client),
      loop_(loop),
      clock_(clock),
      watch_(watch),
      decider_(decider),
      fleet_(fleet),
      events_(client, clock, kWriterName),
      controller_(loop, clock, kStatusesAtOnce,
                  [this](const std::string& name, Finish finish) { Reconcile(name, std::move(finish)); }) {}

void StatusWriter::Start() {
  returned_ms_ = NowMs() + kReturnMs;
  controller_.Start();
}

StatusWriter::~StatusWriter() { loop_->CancelTimer(stop_timer_); }

void StatusWriter::Stop(absl::AnyInvocable<void()> stopped) {
  stopped_ = std::move(stopped);
  controller_.Stop([this] {
    stop_timer_ = loop_->RunAfterMs(kStopEventsMs, [this] { EndStop(); });
    events_.WhenIdle([this] { EndStop(); });
  });
}

void StatusWriter::EndStop() {
  loop_->CancelTimer(stop_timer_);
  if (stopped_) std::exchange(stopped_, nullptr)();
}

void StatusWriter::Reconcile(const std::string& name, Finish finish) {
  const kube::ObjectKey key = KeyOfName(name);
  const Object object = watch_->policies().Find(key);
  if (object == nullptr) {
    written_ms_.erase(name);
    usage_written_ms_.erase(name);
    usage_due_.erase(name);
    deleting_ms_.erase(name);
    return finish(ReconcileResult::kDone);
  }
  if (reconcile::IsBeingDeleted(*object)) return Finalize(key, object, std::move(finish));
  deleting_ms_.erase(name);
  if (reconcile::IsPaused(*object)) return finish(ReconcileResult::kDone);
  if (HasOurs(FinalizersOf(*object))) return Tell(key, object, std::move(finish));
  json with_ours = FinalizersOf(*object);
  with_ours.push_back(kFinalizer);
  PatchFinalizers(key, *object, std::move(with_ours),
                  [this, key, object, finish = std::move(finish)](ReconcileResult result) {
                    if (result != ReconcileResult::kDone) return finish(result);
                    Tell(key, object, finish);
                  });
}

// An object that is deleted is in force no more; it goes when no node that can be asked still has it.
void StatusWriter::Finalize(const kube::ObjectKey& key, const Object& object, Finish finish) {
  const json finalizers = FinalizersOf(*object);
  if (!HasOurs(finalizers)) return finish(ReconcileResult::kDone);
  // From when we first saw it, by our own clock: what the server's says may be far from it.
  const int64_t since_ms = deleting_ms_.try_emplace(key.ToString(), NowMs()).first->second;
  const bool overdue = NowMs() - since_ms > kFinalizeMaxMs;
  const bool held = fleet_->IsHeld(key.ns, key.name) || SomeAreOnTheirWayBack();
  if (held && !overdue) {
    controller_.AddAfter(key.ToString(), kFinalizePollMs);
    return finish(ReconcileResult::kLater);
  }
  if (held) {
    events_.Tell(
        *object, "Warning", "NodesNotTold",
        "deleted although nodes have not said that they enforce it no more; they will be told when they answer");
  }
  PatchFinalizers(key, *object, Without(finalizers), std::move(finish));
}

void StatusWriter::PatchFinalizers(const kube::ObjectKey& key, const json& object, json finalizers, Finish finish) {
  ++stats_.finalizer_writes;
  kube::ApiRequest request;
  request.method = "PATCH";
  request.target = absl::StrCat(kube::PathOf(kPolicies, key), "?fieldManager=", kWriterName);
  request.content_type = kube::kMergePatch;
  request.as_leader = true;
  // Of this very state of the object: the list is replaced whole.
  request.body = json{{"metadata",
                       {{"resourceVersion", TextAt(object, {"metadata", "resourceVersion"})},
                        {"finalizers", std::move(finalizers)}}}}
                     .dump();
  client_->Call(std::move(request), [this, key, finish = std::move(finish)](const kube::ApiError& error, const json&) {
    if (error.ok() || error.kind == ErrorKind::kNotFound) return finish(ReconcileResult::kDone);
    if (error.kind != ErrorKind::kConflict) {
      ++stats_.failures;
      Log(LogLevel::kWarning, "operator", key.ToString(), ": its finalizers: ", error.ToString());
      controller_.PauseFor(error.retry_after_ms.value_or(0));
    }
    finish(ReconcileResult::kRetry);
  });
}

void StatusWriter::Tell(const kube::ObjectKey& key, const Object& object, Finish finish) {
  const std::string name = key.ToString();
  const reconcile::PolicyVerdict* verdict = decider_->VerdictOn(*object);
  if (verdict == nullptr) return finish(ReconcileResult::kDone);  // it is about to be, and that comes here
  const int64_t now_ms = NowMs();
  if (const auto written = written_ms_.find(name); written != written_ms_.end()) {
    const int64_t wait_ms = written->second + kStatusIntervalMs - now_ms;
    if (wait_ms > 0) {
      controller_.AddAfter(name, wait_ms);
      return finish(ReconcileResult::kLater);
    }
  }
  const reconcile::PolicyProgress progress = fleet_->ProgressOf(key.ns, key.name, PoolsOf(*verdict));
  // Our predecessor had heard of every node; that we have not yet is no news. Asked before any status is made: a
  // replica that begins to lead comes here for every policy, and again with every node that is back.
  if (now_ms < returned_ms_ && !progress.awaited.empty() && progress.rejected.empty() &&
      reconcile::WasTrue(*object, "Programmed")) {
    controller_.AddAfter(name, returned_ms_ - now_ms);
    return finish(ReconcileResult::kLater);
  }
  std::optional<json> status = reconcile::StatusToApply(*object, *verdict, progress, clock_->WallMs());
  // The first time it is as old as it may get: when nodes have had the time to say what it is.
  usage_written_ms_.try_emplace(name, now_ms - kUsageIntervalMs + kReturnMs);
  const bool usage_due = usage_due_.erase(name) > 0 && reconcile::UsageDiffers(*object, progress);
  if (!status && usage_due) status = reconcile::WholeStatus(*object, *verdict, progress, clock_->WallMs());
  if (!status) return finish(ReconcileResult::kDone);
  usage_written_ms_[name] = now_ms;
  Apply(key, object, *status, std::move(finish));
}

void StatusWriter::Apply(const kube::ObjectKey& key, const Object& object, const json& status, Finish finish) {
  ++stats_.status_writes;
  const std::string name = key.ToString();
  written_ms_[name] = NowMs();
  client_->ApplyStatus(
      kPolicies, status, kWriterName,
      [this, name, object, said = status, finish = std::move(finish)](const kube::ApiError& error, const json&) {
        if (error.ok()) {
          TellEvents(*object, said);
          return finish(ReconcileResult::kDone);
        }
        // Gone, or another object by now: the watch tells.
        if (error.kind == ErrorKind::kNotFound || error.kind == ErrorKind::kConflict)
          return finish(ReconcileResult::kDone);
        ++stats_.failures;
        Log(LogLevel::kWarning, "operator", name, ": its status: ", error.ToString());
        controller_.PauseFor(error.retry_after_ms.value_or(0));
        finish(ReconcileResult::kRetry);
      });
}

// Of what has turned, and of refusals.
void StatusWriter::TellEvents(const json& before, const json& after) {
  for (const char* type : {"Accepted", "Programmed"}) {
    const json *was = reconcile::ConditionIn(before, type), *is = reconcile::ConditionIn(after, type);
    if (is == nullptr) continue;
    const std::string reason = TextAt(*is, {"reason"});
    const bool good = TextAt(*is, {"status"}) == "True";
    const bool turned =
        was == nullptr || TextAt(*was, {"status"}) != TextAt(*is, {"status"}) || TextAt(*was, {"reason"}) != reason;
    if (!turned || reason == "Pending" || reason == "NotAccepted") continue;
    const std::string message = TextAt(*is, {"message"});
    events_.Tell(before, good ? "Normal" : "Warning", reason, message.empty() ? reason : message);
  }
}

void StatusWriter::RefreshUsage() {
  const int64_t now_ms = NowMs();
  for (auto& [name, written_ms] : usage_written_ms_) {
    if (now_ms - written_ms < kUsageIntervalMs) continue;
    if (usage_turns_.TakeMs(now_ms) > 0) return usage_turns_.GiveBack();
    written_ms = now_ms;
    usage_due_.insert(name);
    controller_.Add(name);
  }
}

bool StatusWriter::SomeAreOnTheirWayBack() const {
  if (NowMs() >= returned_ms_) return false;
  return fleet_->stats().away > 0;
}

}  // namespace kvartal::process
