// What the probes of a cluster are told: alive is a loop that turns, ready is what the owner says, metrics are the
// owner's last text.
// Thread-safe: the loop writes, the threads of the listener read.
// Invariant: a loop that has not turned for kHealthStuckMs is not alive, whatever else was said.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/mutex.h"

namespace kvartal::kube {

struct HealthAnswer {
  int status = 404;
  std::string text;
};

class Health {
 public:
  // The loop turned.
  void Beat(int64_t now_ms);
  // Empty: ready. Else what is waited for, as "caches". Who leads makes no difference: the others are ready to.
  void SetWaitingFor(std::string what);
  void SetMetrics(std::string text);

  // To /healthz, /readyz and /metrics.
  HealthAnswer Answer(std::string_view path, int64_t now_ms) const;

 private:
  mutable Mutex mutex_;
  int64_t beat_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_) = "start";
  std::string metrics_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvartal::kube
