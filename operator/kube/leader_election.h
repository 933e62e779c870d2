// Who of several replicas leads, by a Lease object: what to ask of the API server next, and whether we lead. It sends
// nothing itself. A plain value, confined to its elector; both clocks are passed in.
// Invariants: the age of a foreign claim is measured from when we saw it change, on our own clock, never by the times
// written in it. Leading() is false at the latest kLeaseRenewMs after the last renewal that succeeded was asked for.
// This is no fence: writes of a leader stay optimistic, and a leader that lost ends its process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "operator/kube/api_error.h"
#include "operator/kube/backoff.h"
#include "operator/kube/limits.h"
#include "operator/kube/resource.h"

namespace kvartal::kube {

struct LeaseTimes {
  int64_t duration_ms = kLeaseDurationMs;
  int64_t renew_ms = kLeaseRenewMs;
  int64_t retry_ms = kLeaseRetryMs;
  int64_t call_ms = kLeaseCallMs;
};

struct LeaseRequest {
  enum class Verb { kGet, kCreate, kUpdate };
  Verb verb = Verb::kGet;
  int64_t after_ms = 0;
  nlohmann::json lease;  // what to write
};

class LeaderElection {
 public:
  // `identity` is unique to this process.
  LeaderElection(ObjectKey lease, std::string identity, uint64_t seed, LeaseTimes times = {});

  LeaseRequest Start() const { return {}; }
  // The answer to the last request, and what comes next.
  LeaseRequest OnAnswer(const ApiError& error, const nlohmann::json& lease, int64_t now_ms, int64_t wall_ms);
  // What gives the lease to whoever asks next; nullopt when it is not ours to give.
  std::optional<nlohmann::json> Release(int64_t now_ms, int64_t wall_ms);

  bool Leading(int64_t now_ms) const { return leading_ && now_ms - renewed_ms_ < times_.renew_ms; }
  // Led, and does not any more.
  bool Lost(int64_t now_ms) const { return leading_ && !Leading(now_ms); }
  const std::string& holder() const { return holder_; }
  const LeaseTimes& times() const { return times_; }

 private:
  LeaseRequest OnLease(const nlohmann::json& lease, int64_t now_ms, int64_t wall_ms);
  LeaseRequest GetLater(const ApiError& error, int64_t now_ms);
  nlohmann::json Claim(const nlohmann::json* known, const std::string& holder, int64_t duration_ms,
                       int64_t wall_ms) const;
  void Observe(const nlohmann::json& lease, int64_t now_ms);

  const ObjectKey lease_key_;
  const std::string identity_;
  const LeaseTimes times_;
  Jitter jitter_;
  LeaseRequest::Verb asked_ = LeaseRequest::Verb::kGet;
  nlohmann::json observed_;  // the last lease seen
  int64_t observed_ms_ = 0;  // when it last changed before our eyes
  std::string holder_;
  bool leading_ = false;
  int64_t asked_ms_ = 0;    // when the request under way was asked for
  int64_t renewed_ms_ = 0;  // when the last one that succeeded was
};

// "2026-01-31T12:00:00.000000Z".
std::string MicroTime(int64_t wall_ms);

}  // namespace kvartal::kube
