// Calls and watches to one API server: who we are, how often we may ask, how long an answer may take, and what a
// failure was.
// Confined to its loop.
// Invariants: every call ends in exactly one answer unless it is cancelled; no answer comes from within the call that
// asked; a 401 is tried once more, and only if a newer token could be read; what only a leader may write is not sent
// after another may lead, also when it was asked for before, as by a process that was frozen.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/base/event_loop.h"
#include "nlohmann/json.hpp"
#include "operator/kube/api_error.h"
#include "operator/kube/histogram.h"
#include "operator/kube/http_transport.h"
#include "operator/kube/limits.h"
#include "operator/kube/line_framer.h"
#include "operator/kube/resource.h"
#include "operator/kube/token_bucket.h"
#include "operator/kube/token_source.h"

namespace kvartal::kube {

inline constexpr const char* kJson = "application/json";
inline constexpr const char* kApplyPatch = "application/apply-patch+yaml";  // JSON is YAML
inline constexpr const char* kMergePatch = "application/merge-patch+json";

struct ApiRequest {
  std::string method = "GET";
  std::string target;
  std::string body;
  std::string content_type;
  int64_t deadline_ms = kCallDeadlineMs;
  bool as_leader = false;  // not sent unless we lead when its turn comes
  bool at_once = false;    // waits for no turn: it is one of few, and what it is for does not wait
  // What of a good answer is handed out (ParseSparse); null: all.
  nlohmann::json wanted = nullptr;
};

struct WatchSink {
  absl::AnyInvocable<void(std::string_view)> on_line;
  absl::AnyInvocable<void(ApiError)> on_end;  // ok: the server ended it as it should
};

struct ApiClientStats {
  std::map<std::pair<std::string, int>, uint64_t> requests;  // by method and code; code 0: no answer
  std::map<std::string, Histogram> durations;                // of calls, by method: from sent to answered, or given up
  uint64_t delayed = 0;                                      // waited for their turn
};

class ApiClient {
 public:
  using CallId = uint64_t;
  using Answer = absl::AnyInvocable<void(ApiError, nlohmann::json)>;

  ApiClient(HttpTransport* transport, EventLoop* loop, const Clock* clock, TokenSource token,
            double calls_per_second = kCallsPerSecond);
  ~ApiClient();
  ApiClient(const ApiClient&) = delete;
  ApiClient& operator=(const ApiClient&) = delete;

  // Asked when a request of a leader is about to be sent. Without it we lead.
  void SetLeading(std::function<bool()> leading) { leading_ = std::move(leading); }

  CallId Call(ApiRequest request, Answer answer);
  // The deadline of a watch is for all of it, not for its first byte.
  CallId Watch(std::string target, int64_t deadline_ms, WatchSink sink);
  void Cancel(CallId id);

  // Server-side apply, as leader: this manager says what it wants of the fields it owns, and takes them from whoever
  // has them.
  CallId ApplyStatus(const ResourceType& type, const nlohmann::json& object, const std::string& field_manager,
                     Answer answer);

  const ApiClientStats& stats() const { return stats_; }

 private:
  struct Running {
    ApiRequest request;
    Answer answer;    // of a call
    WatchSink watch;  // of a watch
    bool is_watch = false;
    bool retried = false;
    HttpTransport::CallId transport_call = 0;
    int64_t sent_ms = 0;
    EventLoop::TimerId timer = 0;
    HttpHead head;
    std::string body;
    LineFramer framer;
  };
  using RunningPtr = std::shared_ptr<Running>;

  CallId Begin(RunningPtr running);
  void Send(CallId id);
  void OnHead(CallId id, const HttpHead& head);
  void OnBytes(CallId id, std::string_view bytes);
  void OnLines(CallId id, const RunningPtr& running, std::string_view bytes);
  void OnEnd(CallId id, const absl::Status& status);
  void End(CallId id, ApiError error, nlohmann::json body = nullptr);
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }
  RunningPtr Find(CallId id) const;

  HttpTransport* const transport_;
  EventLoop* const loop_;
  const Clock* const clock_;
  TokenSource token_;
  TokenBucket turns_;
  std::function<bool()> leading_ = [] { return true; };
  std::map<CallId, RunningPtr> running_;
  CallId next_id_ = 1;
  ApiClientStats stats_;
};

}  // namespace kvartal::kube
