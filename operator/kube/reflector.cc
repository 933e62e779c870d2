#include "operator/kube/reflector.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"

namespace kvartal::kube {

Reflector::Reflector(ApiClient* client, EventLoop* loop, const Clock* clock, ReflectorOptions options,
                     OnChange on_change)
    : client_(client),
      loop_(loop),
      clock_(clock),
      options_(std::move(options)),
      on_change_(std::move(on_change)),
      machine_(options_.seed, options_.watch_seconds, options_.always_from_store, options_.wanted) {}

Reflector::~Reflector() {
  client_->Cancel(call_);
  loop_->CancelTimer(timer_);
}

void Reflector::Start() { Schedule(machine_.Start()); }

void Reflector::Run(ListWatchStep step) {
  // First: a request that is over must not be heard while the changes are told.
  if (step.next) {
    client_->Cancel(call_);
    Schedule(*std::move(step.next));
  }
  for (WatchEvent& event : step.events) {
    for (const ObjectChange& change : store_.Apply(std::move(event))) on_change_(change);
  }
}

void Reflector::Schedule(NextRequest next) {
  const int64_t after_ms = next.after_ms;
  timer_ = loop_->RunAfterMs(after_ms, [this, next = std::move(next)] { Send(next); });
}

void Reflector::Send(const NextRequest& next) {
  if (next.verb == NextRequest::Verb::kList) {
    SendList(next);
  } else {
    SendWatch(next);
  }
}

void Reflector::SendList(const NextRequest& next) {
  std::string target = absl::StrCat(PathOf(options_.type, options_.ns), "?", Selector());
  if (next.paged) absl::StrAppend(&target, "limit=", next.page_items, "&");
  if (!next.continue_token.empty()) absl::StrAppend(&target, "continue=", QueryEscape(next.continue_token), "&");
  if (!next.resource_version.empty()) absl::StrAppend(&target, "resourceVersion=", QueryEscape(next.resource_version));
  while (target.ends_with('&') || target.ends_with('?')) target.pop_back();
  ApiRequest request;
  request.target = std::move(target);
  request.wanted = machine_.wanted_of_page();
  call_ = client_->Call(std::move(request), [this](const ApiError& error, nlohmann::json page) {
    NoteError("list", error);
    Run(error.ok() ? machine_.OnPage(std::move(page), NowMs()) : machine_.OnListError(error, NowMs()));
  });
}

void Reflector::SendWatch(const NextRequest& next) {
  const std::string target = absl::StrCat(PathOf(options_.type, options_.ns), "?", Selector(),
                                          "watch=true&allowWatchBookmarks=true&timeoutSeconds=", next.timeout_seconds,
                                          "&resourceVersion=", QueryEscape(next.resource_version));
  const int64_t deadline_ms = next.timeout_seconds * 1000 + options_.watch_margin_ms;
  machine_.OnWatchSent(NowMs());
  call_ = client_->Watch(target, deadline_ms,
                         {[this](std::string_view line) {
                            last_error_ = {};
                            Run(machine_.OnLine(line, NowMs()));
                          },
                          [this](const ApiError& error) {
                            NoteError("watch", error);
                            Run(machine_.OnWatchEnd(error, NowMs()));
                          }});
}

std::string Reflector::Selector() const {
  return options_.field_selector.empty() ? ""
                                         : absl::StrCat("fieldSelector=", QueryEscape(options_.field_selector), "&");
}

void Reflector::NoteError(const char* what, const ApiError& error) {
  // Once for each streak of failures of a kind: an API server may be away for hours.
  if (!error.ok() && error.kind != last_error_.kind)
    Log(LogLevel::kWarning, "kube", what, " of ", options_.type.plural, ": ", error.ToString());
  last_error_ = error;
}

}  // namespace kvartal::kube
