// Serves a Health over HTTP to the kubelet and to Prometheus. No administration here, ever: this port is open to
// whoever reaches the pod.
// Made and destroyed on the loop; answers on the library's threads.
// Invariant: what is served is read from Health alone, so a stuck loop cannot keep a probe waiting.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/event_loop.h"
#include "operator/kube/health.h"

namespace kvartal::kube {

class HealthServer {
 public:
  // `address`: "0.0.0.0:8081". Beats `health` from `loop` as long as it turns.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Create(const std::string& address, EventLoop* loop,
                                                              const Clock* clock, Health* health);
  ~HealthServer();
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;

 private:
  struct Listener;
  HealthServer(EventLoop* loop, const Clock* clock, Health* health);
  void Beat();

  EventLoop* const loop_;
  const Clock* const clock_;
  Health* const health_;
  std::unique_ptr<Listener> listener_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace kvartal::kube
