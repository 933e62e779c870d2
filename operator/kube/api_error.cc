#include "operator/kube/api_error.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "operator/kube/json_fields.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {
namespace {

// Servers say it by a cause (1.20 and newer) or by the message alone.
bool SaysTooLargeVersion(const nlohmann::json& status) {
  const nlohmann::json* causes = FieldAt(status, {"details", "causes"});
  if (causes != nullptr && causes->is_array()) {
    for (const nlohmann::json& cause : *causes) {
      if (TextAt(cause, {"reason"}) == "ResourceVersionTooLarge") return true;
    }
  }
  return TextAt(status, {"message"}).find("Too large resource version") != std::string::npos;
}

ErrorKind KindOf(int code, const std::string& reason) {
  switch (code) {
    case 400:
    case 422:
      return ErrorKind::kInvalid;
    case 401:
      return ErrorKind::kUnauthorized;
    case 403:
      return ErrorKind::kForbidden;
    case 404:
      return ErrorKind::kNotFound;
    case 409:
      return reason == "AlreadyExists" ? ErrorKind::kAlreadyExists : ErrorKind::kConflict;
    case 410:
      return ErrorKind::kExpired;
    case 429:
      return ErrorKind::kTooManyRequests;
    default:
      break;
  }
  if (reason == "Expired" || reason == "Gone") return ErrorKind::kExpired;
  return code >= 500 && code < 600 ? ErrorKind::kServer : ErrorKind::kOther;
}

}  // namespace

std::string_view NameOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kNone:
      return "none";
    case ErrorKind::kTransport:
      return "transport";
    case ErrorKind::kDeadline:
      return "deadline";
    case ErrorKind::kBadAnswer:
      return "bad_answer";
    case ErrorKind::kTooLargeAnswer:
      return "too_large_answer";
    case ErrorKind::kBusy:
      return "busy";
    case ErrorKind::kUnauthorized:
      return "unauthorized";
    case ErrorKind::kForbidden:
      return "forbidden";
    case ErrorKind::kNotFound:
      return "not_found";
    case ErrorKind::kAlreadyExists:
      return "already_exists";
    case ErrorKind::kConflict:
      return "conflict";
    case ErrorKind::kExpired:
      return "expired";
    case ErrorKind::kTooLargeVersion:
      return "too_large_version";
    case ErrorKind::kInvalid:
      return "invalid";
    case ErrorKind::kTooManyRequests:
      return "too_many_requests";
    case ErrorKind::kServer:
      return "server";
    case ErrorKind::kOther:
      return "other";
  }
  return "other";
}

std::string ApiError::ToString() const {
  if (ok()) return "ok";
  return absl::StrCat(std::string(NameOf(kind)), code == 0 ? "" : absl::StrCat(" (", code, ")"), ": ", message);
}

ApiError ErrorOfStatus(const nlohmann::json& status) {
  ApiError error;
  error.code = static_cast<int>(NumberAt(status, {"code"}).value_or(0));
  error.kind = KindOf(error.code, TextAt(status, {"reason"}));
  error.message = TextAt(status, {"message"});
  if (SaysTooLargeVersion(status)) error.kind = ErrorKind::kTooLargeVersion;
  if (const auto seconds = NumberAt(status, {"details", "retryAfterSeconds"}); seconds && *seconds > 0)
    error.retry_after_ms = std::min(*seconds, kRetryAfterMsMax / 1000) * 1000;
  return error;
}

ApiError ErrorOfAnswer(const HttpHead& head, std::string_view body) {
  const nlohmann::json status = nlohmann::json::parse(body, nullptr, false);
  ApiError error;
  if (TextAt(status, {"kind"}) == "Status") error = ErrorOfStatus(status);
  if (error.code != head.status) {
    // Not from the API server, or one that contradicts itself: what the protocol says counts.
    error.code = head.status;
    error.kind = KindOf(head.status, "");
  }
  if (error.message.empty()) error.message = std::string(body.substr(0, 200));
  if (head.retry_after_ms) error.retry_after_ms = std::clamp<int64_t>(*head.retry_after_ms, 0, kRetryAfterMsMax);
  return error;
}

}  // namespace kvartal::kube
