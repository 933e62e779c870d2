#include "operator/kube/health.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {

void Health::Beat(int64_t now_ms) {
  MutexLock lock(mutex_);
  beat_ms_ = now_ms;
}

void Health::SetWaitingFor(std::string what) {
  MutexLock lock(mutex_);
  waiting_for_ = std::move(what);
}

void Health::SetMetrics(std::string text) {
  MutexLock lock(mutex_);
  metrics_ = std::move(text);
}

HealthAnswer Health::Answer(std::string_view path, int64_t now_ms) const {
  MutexLock lock(mutex_);
  if (path == "/metrics") return {200, metrics_};
  const bool stuck = now_ms - beat_ms_ >= kHealthStuckMs;
  if (path == "/healthz" || path == "/readyz") {
    if (stuck) return {503, absl::StrCat("the loop has not turned for ", now_ms - beat_ms_, " ms\n")};
    if (path == "/readyz" && !waiting_for_.empty()) return {503, absl::StrCat("waiting for ", waiting_for_, "\n")};
    return {200, "ok\n"};
  }
  return {404, "not found; there are /healthz, /readyz and /metrics\n"};
}

}  // namespace kvartal::kube
