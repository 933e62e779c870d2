#include "operator/kube/list_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "operator/kube/json_fields.h"
#include "operator/kube/sparse_json.h"

namespace kvartal::kube {
namespace {

ApiError BadAnswer(const std::string& what) { return {ErrorKind::kBadAnswer, 0, what, std::nullopt}; }

// The next watch from the same version may well go on.
bool SaysNothingOfVersion(ErrorKind kind) {
  return kind == ErrorKind::kNone || kind == ErrorKind::kTransport || kind == ErrorKind::kDeadline ||
         kind == ErrorKind::kBusy || kind == ErrorKind::kTooManyRequests;
}

// What ErrorOfStatus reads.
const nlohmann::json kWantedOfStatus = {{"code", true},
                                        {"reason", true},
                                        {"message", true},
                                        {"details", {{"retryAfterSeconds", true}, {"causes", {{"reason", true}}}}}};

}  // namespace

ListWatch::ListWatch(uint64_t seed, WatchSeconds seconds, bool always_from_store, const nlohmann::json& wanted)
    : backoff_(seed),
      jitter_(~seed),
      seconds_(seconds),
      always_from_store_(always_from_store),
      from_store_(always_from_store) {
  if (wanted.is_null()) return;
  wanted_of_page_ = {{"metadata", {{"resourceVersion", true}, {"continue", true}}}, {"items", wanted}};
  wanted_of_event_ = {{"type", true}, {"object", kWantedOfStatus}};
  wanted_of_event_["object"].update(wanted);
}

NextRequest ListWatch::Start() { return List(0); }

NextRequest ListWatch::List(int64_t after_ms) {
  ++stats_.lists;
  in_list_ = false;
  bad_ends_ = 0;
  continue_token_.clear();
  page_items_ = kListPageItems;
  return Page(after_ms);
}

NextRequest ListWatch::Page(int64_t after_ms) const {
  NextRequest next;
  next.verb = NextRequest::Verb::kList;
  next.after_ms = after_ms;
  // "0" is whatever the server's cache has: cheap, and good enough for the first look.
  if (!from_store_) next.resource_version = resource_version_.empty() ? "0" : resource_version_;
  next.paged = from_store_;
  next.continue_token = continue_token_;
  next.page_items = page_items_;
  return next;
}

NextRequest ListWatch::Watch(int64_t after_ms) {
  ++stats_.watches;
  NextRequest next;
  next.verb = NextRequest::Verb::kWatch;
  next.after_ms = after_ms;
  next.resource_version = resource_version_;
  next.timeout_seconds = jitter_.Between(seconds_.min, seconds_.max);
  return next;
}

int64_t ListWatch::Wait(const ApiError& error, int64_t now_ms) {
  return std::max(backoff_.NextMs(now_ms), error.retry_after_ms.value_or(0));
}

ListWatchStep ListWatch::OnPage(nlohmann::json page, int64_t now_ms) {
  const nlohmann::json* items = FieldAt(page, {"items"});
  const std::string version = TextAt(page, {"metadata", "resourceVersion"});
  if (items == nullptr || !(items->is_array() || items->is_null()) || version.empty())
    return OnListError(BadAnswer("a list without items or resourceVersion"), now_ms);
  ListWatchStep step;
  if (!in_list_) step.events.push_back({WatchEvent::Kind::kInit, nullptr});
  in_list_ = true;
  stats_.events += items->size();
  for (nlohmann::json& item : page["items"]) step.events.push_back({WatchEvent::Kind::kInitApply, std::move(item)});
  continue_token_ = TextAt(page, {"metadata", "continue"});
  if (!continue_token_.empty()) {
    from_store_ = true;
    page_items_ = std::min(page_items_ * 2, kListPageItems);
    step.next = Page(0);
    return step;
  }
  step.events.push_back({WatchEvent::Kind::kInitDone, nullptr});
  in_list_ = false;
  from_store_ = always_from_store_;
  resource_version_ = version;
  step.next = Watch(0);
  return step;
}

ListWatchStep ListWatch::OnListError(const ApiError& error, int64_t now_ms) {
  ListWatchStep step;
  // A list from the server's cache comes whole, however large: a slow one may be a slow server.
  const bool too_large = error.kind == ErrorKind::kTooLargeAnswer;
  const bool too_much = too_large || (from_store_ && error.kind == ErrorKind::kDeadline);
  if (too_much && page_items_ > kSmallPageItems) {
    from_store_ = true;
    page_items_ = kSmallPageItems;
    step.next = Page(too_large ? 0 : Wait(error, now_ms));
    return step;
  }
  const bool unknown_version = error.kind == ErrorKind::kExpired || error.kind == ErrorKind::kTooLargeVersion;
  stats_.expired += error.kind == ErrorKind::kExpired;
  // The first time this is not a failure but news: the version is of no use, so ask without one.
  const bool news = unknown_version && !from_store_;
  if (unknown_version) from_store_ = true;
  step.next = List(news ? 0 : Wait(error, now_ms));
  return step;
}

void ListWatch::OnWatchSent(int64_t now_ms) {
  sent_ms_ = now_ms;
  heard_ = false;
}

void ListWatch::Advance(const nlohmann::json& object) {
  const std::string version = TextAt(object, {"metadata", "resourceVersion"});
  if (version.empty() || version == resource_version_) return;
  resource_version_ = version;
  bad_ends_ = 0;
}

ListWatchStep ListWatch::OnLine(std::string_view line, int64_t now_ms) {
  nlohmann::json event = ParseSparse(line, wanted_of_event_);
  const nlohmann::json* object = FieldAt(event, {"object"});
  if (object == nullptr) return OnWatchEnd(BadAnswer("a line of a watch that is no event"), now_ms);
  const std::string type = TextAt(event, {"type"});
  if (type == "ERROR") return OnWatchEnd(ErrorOfStatus(*object), now_ms);
  heard_ = true;
  ListWatchStep step;
  if (type == "BOOKMARK") {
    ++stats_.bookmarks;
  } else if (type == "ADDED" || type == "MODIFIED") {
    step.events.push_back({WatchEvent::Kind::kApply, nullptr});
  } else if (type == "DELETED") {
    step.events.push_back({WatchEvent::Kind::kDelete, nullptr});
  } else {
    return OnWatchEnd(BadAnswer(absl::StrCat("a watch event of unknown type '", type, "'")), now_ms);
  }
  stats_.events += step.events.size();
  Advance(*object);
  if (!step.events.empty()) step.events.front().object = std::move(event["object"]);
  return step;
}

ListWatchStep ListWatch::OnWatchEnd(const ApiError& error, int64_t now_ms) {
  const bool unknown_version = error.kind == ErrorKind::kExpired || error.kind == ErrorKind::kTooLargeVersion;
  // A server that ends watches as soon as they begin would be asked in a hot loop. How long one lived counts from when
  // it was sent: a server counts from when it accepted it, which is sooner than we hear of it.
  const bool as_it_should = error.ok() && (heard_ || now_ms - sent_ms_ >= kShortWatchMs);
  stats_.expired += error.kind == ErrorKind::kExpired;
  ++(as_it_should ? stats_.ended : stats_.broken);
  if (as_it_should) bad_ends_ = 0;
  if (!SaysNothingOfVersion(error.kind)) ++bad_ends_;
  ListWatchStep step;
  step.next = unknown_version || bad_ends_ >= kBadWatchEndsMax ? List(Wait(error, now_ms))
                                                               : Watch(as_it_should ? 0 : Wait(error, now_ms));
  return step;
}

}  // namespace kvartal::kube
