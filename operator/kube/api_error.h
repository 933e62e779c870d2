// What went wrong with a request, told apart as far as a caller acts differently on it.
// A plain value. Invariant: every answer that is no success, and every answer that never came, is exactly one kind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nlohmann/json_fwd.hpp"
#include "operator/kube/http_transport.h"

namespace kvartal::kube {

enum class ErrorKind {
  kNone,
  kTransport,        // no connection, or it broke
  kDeadline,         // no answer in time
  kBadAnswer,        // an answer that is not what the protocol says
  kTooLargeAnswer,   // more of it than we take
  kBusy,             // refused here: too many calls wait for their turn, or it was for a leader
  kUnauthorized,     // 401
  kForbidden,        // 403
  kNotFound,         // 404
  kAlreadyExists,    // 409 of a create
  kConflict,         // 409: someone else wrote it meanwhile
  kExpired,          // 410: the server does not know this resource version any more
  kTooLargeVersion,  // the server does not know this resource version yet
  kInvalid,          // 400, 422: the object is not accepted
  kTooManyRequests,  // 429
  kServer,           // 5xx
  kOther,
};
std::string_view NameOf(ErrorKind kind);

struct ApiError {
  ErrorKind kind = ErrorKind::kNone;
  int code = 0;  // of HTTP; 0 when there was no answer
  std::string message;
  std::optional<int64_t> retry_after_ms;

  bool ok() const { return kind == ErrorKind::kNone; }
  std::string ToString() const;
};

// From an answer that is no success: `body` is a Status object, or anything else a proxy may say.
ApiError ErrorOfAnswer(const HttpHead& head, std::string_view body);
// From a Status object, as it also stands in a watch.
ApiError ErrorOfStatus(const nlohmann::json& status);

}  // namespace kvartal::kube
