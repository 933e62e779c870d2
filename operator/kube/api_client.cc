#include "operator/kube/api_client.h"

#include "absl/strings/str_cat.h"
#include "operator/kube/object_store.h"
#include "operator/kube/sparse_json.h"

namespace kvartal::kube {
namespace {

bool IsSuccess(int status) { return status >= 200 && status < 300; }

ApiError Failed(ErrorKind kind, std::string message) { return {kind, 0, std::move(message), std::nullopt}; }

}  // namespace

ApiClient::ApiClient(HttpTransport* transport, EventLoop* loop, const Clock* clock, TokenSource token,
                     double calls_per_second)
    : transport_(transport),
      loop_(loop),
      clock_(clock),
      token_(std::move(token)),
      turns_(calls_per_second, calls_per_second * kCallsBurst / kCallsPerSecond) {}

ApiClient::~ApiClient() {
  while (!running_.empty()) Cancel(running_.begin()->first);
}

ApiClient::RunningPtr ApiClient::Find(CallId id) const {
  const auto found = running_.find(id);
  return found == running_.end() ? nullptr : found->second;
}

ApiClient::CallId ApiClient::Call(ApiRequest request, Answer answer) {
  auto running = std::make_shared<Running>();
  running->request = std::move(request);
  running->answer = std::move(answer);
  return Begin(std::move(running));
}

ApiClient::CallId ApiClient::Watch(std::string target, int64_t deadline_ms, WatchSink sink) {
  auto running = std::make_shared<Running>();
  running->request.target = std::move(target);
  running->request.deadline_ms = deadline_ms;
  running->watch = std::move(sink);
  running->is_watch = true;
  return Begin(std::move(running));
}

ApiClient::CallId ApiClient::Begin(RunningPtr running) {
  const CallId id = next_id_++;
  const int64_t delay_ms = running->request.at_once ? 0 : turns_.TakeMs(NowMs());
  if (delay_ms > 0) ++stats_.delayed;
  const bool too_long = delay_ms > kCallDelayMsMax;
  if (too_long) turns_.GiveBack();
  // Also without a delay from the loop: an answer never comes from within the call that asked.
  running->timer = loop_->RunAfterMs(too_long ? 0 : delay_ms, [this, id, too_long] {
    if (too_long) return End(id, Failed(ErrorKind::kBusy, "too many calls wait for their turn"));
    Send(id);
  });
  running_.emplace(id, std::move(running));
  return id;
}

void ApiClient::Send(CallId id) {
  const RunningPtr running = Find(id);
  if (running == nullptr) return;
  if (running->request.as_leader && !leading_()) return End(id, Failed(ErrorKind::kBusy, "this replica does not lead"));
  running->head = {};
  running->body.clear();
  HttpRequest request;
  request.method = running->request.method;
  request.target = running->request.target;
  request.body = running->request.body;
  request.content_type = running->request.content_type;
  request.bearer_token = token_.Token(NowMs());
  running->timer = loop_->RunAfterMs(running->request.deadline_ms, [this, id] {
    if (const RunningPtr late = Find(id)) transport_->Fail(late->transport_call);
    End(id, Failed(ErrorKind::kDeadline, "no answer, or not all of it, within the deadline"));
  });
  running->sent_ms = NowMs();
  running->transport_call =
      transport_->Start(std::move(request), {[this, id](const HttpHead& head) { OnHead(id, head); },
                                             [this, id](std::string_view bytes) { OnBytes(id, bytes); },
                                             [this, id](const absl::Status& status) { OnEnd(id, status); }});
}

void ApiClient::OnHead(CallId id, const HttpHead& head) {
  const RunningPtr running = Find(id);
  if (running == nullptr) return;
  running->head = head;
  ++stats_.requests[{running->request.method, head.status}];
  if (head.status == 401 && !running->retried && token_.Refresh(NowMs())) {
    running->retried = true;
    transport_->Cancel(running->transport_call);
    loop_->CancelTimer(running->timer);
    return Send(id);
  }
}

void ApiClient::OnBytes(CallId id, std::string_view bytes) {
  const RunningPtr running = Find(id);
  if (running == nullptr) return;
  const bool success = IsSuccess(running->head.status);
  if (running->is_watch && success) return OnLines(id, running, bytes);
  if (running->body.size() + bytes.size() <= (success ? kBodyBytesMax : kErrorBodyBytesMax)) {
    running->body.append(bytes);
  } else if (success) {
    End(id, Failed(ErrorKind::kTooLargeAnswer, absl::StrCat("an answer of more than ", kBodyBytesMax, " bytes")));
  }
}

void ApiClient::OnLines(CallId id, const RunningPtr& running, std::string_view bytes) {
  // A line may end the watch: what it cancels must not be told the rest.
  const bool fits = running->framer.Feed(bytes, [&](std::string_view line) {
    running->watch.on_line(line);
    return Find(id) != nullptr;
  });
  if (!fits) End(id, Failed(ErrorKind::kBadAnswer, absl::StrCat("a line of more than ", kWatchLineBytesMax, " bytes")));
}

void ApiClient::OnEnd(CallId id, const absl::Status& status) {
  const RunningPtr running = Find(id);
  if (running == nullptr) return;
  if (running->head.status == 0) ++stats_.requests[{running->request.method, 0}];
  if (running->head.status != 0 && !IsSuccess(running->head.status))
    return End(id, ErrorOfAnswer(running->head, running->body));
  if (!status.ok()) return End(id, Failed(ErrorKind::kTransport, std::string(status.message())));
  if (running->head.status == 0) return End(id, Failed(ErrorKind::kTransport, "no answer"));
  if (running->is_watch) {
    if (running->framer.held() > 0) return End(id, Failed(ErrorKind::kTransport, "ended within a line"));
    return End(id, ApiError());
  }
  if (running->body.empty()) return End(id, ApiError());
  nlohmann::json body = ParseSparse(running->body, running->request.wanted);
  if (body.is_discarded()) return End(id, Failed(ErrorKind::kBadAnswer, "an answer that is not JSON"));
  End(id, ApiError(), std::move(body));
}

void ApiClient::End(CallId id, ApiError error, nlohmann::json body) {
  const RunningPtr running = Find(id);
  if (running == nullptr) return;
  if (!running->is_watch && running->transport_call != 0)
    stats_.durations[running->request.method].Observe(NowMs() - running->sent_ms);
  Cancel(id);
  if (running->is_watch) {
    running->watch.on_end(std::move(error));
  } else {
    running->answer(std::move(error), std::move(body));
  }
}

void ApiClient::Cancel(CallId id) {
  const RunningPtr running = Find(id);
  if (running == nullptr) return;
  running_.erase(id);
  loop_->CancelTimer(running->timer);
  if (running->transport_call != 0) transport_->Cancel(running->transport_call);
}

ApiClient::CallId ApiClient::ApplyStatus(const ResourceType& type, const nlohmann::json& object,
                                         const std::string& field_manager, Answer answer) {
  ApiRequest request;
  request.method = "PATCH";
  request.target =
      absl::StrCat(PathOf(type, KeyOf(object), "status"), "?force=true&fieldManager=", QueryEscape(field_manager));
  request.content_type = kApplyPatch;
  request.body = object.dump();
  request.as_leader = true;
  return Call(std::move(request), std::move(answer));
}

}  // namespace kvartal::kube
