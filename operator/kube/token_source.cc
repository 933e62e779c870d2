#include "operator/kube/token_source.h"

#include "absl/strings/ascii.h"
#include "daemon/base/log.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {

const std::string& TokenSource::Token(int64_t now_ms) {
  if (!read_once_ || (!credential_.path.empty() && now_ms - read_ms_ >= kTokenPeriodMs - kTokenLeewayMs))
    Refresh(now_ms);
  return token_;
}

bool TokenSource::Refresh(int64_t now_ms) {
  read_once_ = true;
  read_ms_ = now_ms;
  if (!credential_.given()) return false;
  const absl::StatusOr<std::string> read = credential_.Read();
  if (!read.ok()) {
    Log(LogLevel::kWarning, "kube", "the token is kept: ", read.status().message());
    return false;
  }
  std::string token(absl::StripAsciiWhitespace(*read));
  if (token == token_) return false;
  token_ = std::move(token);
  return true;
}

}  // namespace kvartal::kube
