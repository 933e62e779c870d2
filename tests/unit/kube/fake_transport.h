// An HttpTransport whose answers a test gives by hand, piece by piece.
// Confined to the thread of the test.
// Invariant: like the real one it never calls a sink from within Start, and never after Cancel or Fail.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "operator/kube/http_transport.h"

namespace kvartal::testing {

class FakeTransport : public kube::HttpTransport {
 public:
  CallId Start(kube::HttpRequest request, kube::HttpSink sink) override {
    const CallId id = next_id_++;
    requests.push_back(request);
    open_[id] = std::make_shared<kube::HttpSink>(std::move(sink));
    last_ = id;
    return id;
  }
  void Cancel(CallId call) override { cancelled += open_.erase(call); }
  void Fail(CallId call) override { failed += open_.erase(call); }

  bool IsOpen(CallId id) const { return open_.contains(id); }
  size_t open() const { return open_.size(); }
  CallId last() const { return last_; }

  // To the newest call.
  void Head(int status, std::optional<int64_t> retry_after_ms = std::nullopt) { Head(last_, status, retry_after_ms); }
  void Bytes(std::string_view bytes) { Bytes(last_, bytes); }
  void End(absl::Status status = absl::OkStatus()) { End(last_, std::move(status)); }
  void Answer(int status, std::string_view body) {
    const CallId id = last_;
    Head(id, status);
    Bytes(id, body);
    End(id, absl::OkStatus());
  }

  void Head(CallId id, int status, std::optional<int64_t> retry_after_ms = std::nullopt) {
    if (const auto sink = Find(id)) sink->on_head({status, retry_after_ms});
  }
  void Bytes(CallId id, std::string_view bytes) {
    if (const auto sink = Find(id)) sink->on_bytes(bytes);
  }
  void End(CallId id, absl::Status status) {
    const auto sink = Find(id);
    open_.erase(id);
    if (sink) sink->on_end(std::move(status));
  }

  std::vector<kube::HttpRequest> requests;
  size_t cancelled = 0, failed = 0;

 private:
  std::shared_ptr<kube::HttpSink> Find(CallId id) const {
    const auto found = open_.find(id);
    return found == open_.end() ? nullptr : found->second;
  }
  std::map<CallId, std::shared_ptr<kube::HttpSink>> open_;
  CallId next_id_ = 1, last_ = 0;
};

}  // namespace kvartal::testing
