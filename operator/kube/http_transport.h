// How requests reach the API server: started on the loop, answered on the loop, piece by piece. cpprestsdk is behind it
// in the operator, a script in tests.
// Confined to the loop of its owner.
// Invariants: a sink hears at most one head, then bytes, then exactly one end; after Cancel or Fail it hears nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "daemon/base/status.h"

namespace kvartal::kube {

struct HttpRequest {
  std::string method = "GET";
  std::string target;  // path and query
  std::string content_type, body;
  std::string bearer_token;  // never logged
};

struct HttpHead {
  int status = 0;
  std::optional<int64_t> retry_after_ms;
};

struct HttpSink {
  absl::AnyInvocable<void(const HttpHead&)> on_head;
  absl::AnyInvocable<void(std::string_view)> on_bytes;
  // Not OK: what came before is not the whole answer.
  absl::AnyInvocable<void(absl::Status)> on_end;
};

class HttpTransport {
 public:
  using CallId = uint64_t;

  virtual ~HttpTransport() = default;
  // The sink is called from the loop, never from within Start.
  virtual CallId Start(HttpRequest request, HttpSink sink) = 0;
  // Also for a call that has ended.
  virtual void Cancel(CallId call) = 0;
  // Cancels what got no answer in time: its connection may be half open, and so may those beside it.
  virtual void Fail(CallId call) = 0;
};

}  // namespace kvartal::kube
