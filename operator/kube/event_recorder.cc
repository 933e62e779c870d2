#include "operator/kube/event_recorder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/log.h"
#include "operator/kube/json_fields.h"
#include "operator/kube/leader_election.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {
namespace {

const ResourceType kEvents = {"events.k8s.io", "v1", "events", true};

// FNV-1a: a name is to be short, no more.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace

EventRecorder::Subject& EventRecorder::SubjectOf(const std::string& uid) {
  if (!subjects_.contains(uid) && subjects_.size() >= kEventSubjectsMax) {
    subjects_.erase(std::min_element(subjects_.begin(), subjects_.end(),
                                     [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
  Subject& subject =
      subjects_.try_emplace(uid, Subject{TokenBucket(kEventsPerSecond, kEventsBurst), 0, {}, {}}).first->second;
  subject.used = ++tells_;
  return subject;
}

EventRecorder::Told& EventRecorder::ToldOf(Subject* subject, const std::string& kind, const std::string& note,
                                           int64_t now_ms) {
  if (subject->similar.size() >= kEventsOfSubjectMax && !subject->similar.contains(kind)) subject->similar.clear();
  Similar& similar = subject->similar[kind];
  if (now_ms - similar.last_ms > kEventSimilarMs) similar.notes.clear();
  similar.last_ms = now_ms;
  const bool many = !similar.notes.contains(note) && similar.notes.size() >= kEventSimilarMax;
  if (!many) similar.notes.insert(note);
  const std::string same = many ? kind : absl::StrCat(kind, " ", note);
  if (!subject->told.contains(same) && subject->told.size() >= kEventsOfSubjectMax) subject->told.clear();
  Told& told = subject->told[same];
  // An Event's note may not be changed: of many it is that of the first.
  if (told.count++ == 0)
    told.note = absl::StrCat(many ? "(combined from similar events) " : "", note).substr(0, kEventMessageBytesMax);
  return told;
}

void EventRecorder::Tell(const nlohmann::json& object, const std::string& type, const std::string& reason,
                         const std::string& message) {
  const int64_t now_ms = clock_->MonotonicNs() / kNsPerMs;
  Subject& subject = SubjectOf(TextAt(object, {"metadata", "uid"}));
  if (subject.turns.TakeMs(now_ms) > 0) {
    subject.turns.GiveBack();
    ++stats_.dropped;
    return;
  }
  const std::string now = MicroTime(clock_->WallMs());
  Told& told = ToldOf(&subject, absl::StrCat(type, " ", reason), message.substr(0, kEventMessageBytesMax), now_ms);
  if (told.first.empty()) told.first = now;
  Send(object, type, reason, told, now);
}

void EventRecorder::Send(const nlohmann::json& object, const std::string& type, const std::string& reason,
                         const Told& told, const std::string& now) {
  const std::string uid = TextAt(object, {"metadata", "uid"}), name = TextAt(object, {"metadata", "name"});
  // What an Event says may not be changed, when it was first said included: of another process it is another Event.
  const std::string event =
      absl::StrFormat("%s.%016x", name, HashOf(absl::StrCat(uid, type, " ", reason, " ", told.note, told.first)));
  const std::string ns = TextAt(object, {"metadata", "namespace"});
  nlohmann::json body = {{"apiVersion", "events.k8s.io/v1"},
                         {"kind", "Event"},
                         {"metadata", {{"name", event}, {"namespace", ns}}},
                         {"regarding",
                          {{"apiVersion", TextAt(object, {"apiVersion"})},
                           {"kind", TextAt(object, {"kind"})},
                           {"namespace", ns},
                           {"name", name},
                           {"uid", uid}}},
                         {"type", type},
                         {"reason", reason},
                         {"note", told.note},
                         {"action", "Reconcile"},
                         {"reportingController", component_},
                         {"reportingInstance", component_},
                         {"eventTime", told.first}};
  if (told.count > 1) body["series"] = {{"count", told.count}, {"lastObservedTime", now}};
  ApiRequest request;
  request.method = "PATCH";
  request.target = absl::StrCat(PathOf(kEvents, {ns, event}), "?force=true&fieldManager=", QueryEscape(component_));
  request.content_type = kApplyPatch;
  request.as_leader = true;
  request.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  ++on_their_way_;
  client_->Call(std::move(request), [this, reason](const ApiError& error, const nlohmann::json&) {
    ++(error.ok() ? stats_.told : stats_.dropped);
    if (!error.ok()) Log(LogLevel::kWarning, "kube", "an Event (", reason, ") is not told: ", error.ToString());
    if (--on_their_way_ == 0 && idle_) std::exchange(idle_, nullptr)();
  });
}

void EventRecorder::WhenIdle(absl::AnyInvocable<void()> idle) {
  if (on_their_way_ == 0) return idle();
  idle_ = std::move(idle);
}

}  // namespace kvartal::kube
