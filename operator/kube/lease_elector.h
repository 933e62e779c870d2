// Runs a LeaderElection against the API server and tells when we begin to lead and when we do not any more.
// Confined to its loop.
// Invariants: on_leading once; then at most one of on_lost and a Release. Whoever hears on_lost ends the process: there
// is no way back to leading.
#pragma once

#include <string>

#include "operator/kube/api_client.h"
#include "operator/kube/leader_election.h"

namespace kvartal::kube {

class LeaseElector {
 public:
  struct Sink {
    absl::AnyInvocable<void()> on_leading;
    absl::AnyInvocable<void()> on_lost;
  };

  LeaseElector(ApiClient* client, EventLoop* loop, const Clock* clock, ObjectKey lease, LeaderElection election,
               Sink sink);
  ~LeaseElector();
  LeaseElector(const LeaseElector&) = delete;
  LeaseElector& operator=(const LeaseElector&) = delete;

  void Start();
  bool leading() const { return !over_ && election_.Leading(NowMs()); }
  const std::string& holder() const { return election_.holder(); }
  // Stops, and gives the lease up so that the next one need not wait for it to run out. `done` is called in any case.
  void Release(absl::AnyInvocable<void()> done);

 private:
  void Schedule(LeaseRequest request);
  void Send(const LeaseRequest& request);
  void OnAnswer(const ApiError& error, const nlohmann::json& lease);
  void Watch();
  void Stop();
  int64_t NowMs() const { return clock_->MonotonicNs() / kNsPerMs; }

  ApiClient* const client_;
  EventLoop* const loop_;
  const Clock* const clock_;
  const ObjectKey lease_key_;
  LeaderElection election_;
  Sink sink_;
  bool told_ = false;  // that we lead
  bool over_ = false;
  ApiClient::CallId call_ = 0;
  EventLoop::TimerId timer_ = 0, watchdog_ = 0;
};

}  // namespace kvartal::kube
