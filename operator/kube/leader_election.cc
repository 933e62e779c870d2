#include "operator/kube/leader_election.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "operator/kube/json_fields.h"

namespace kvartal::kube {

std::string MicroTime(int64_t wall_ms) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", absl::FromUnixMillis(wall_ms), absl::UTCTimeZone());
}

LeaderElection::LeaderElection(ObjectKey lease, std::string identity, uint64_t seed, LeaseTimes times)
    : lease_key_(std::move(lease)), identity_(std::move(identity)), times_(times), jitter_(seed) {}

LeaseRequest LeaderElection::GetLater(const ApiError& error, int64_t now_ms) {
  LeaseRequest next;
  next.after_ms = times_.retry_ms;
  // Candidates spread; a leader keeps its rhythm.
  if (!leading_)
    next.after_ms += static_cast<int64_t>(jitter_.Unit() * kLeaseJitter * static_cast<double>(times_.retry_ms));
  int64_t wished_ms = error.retry_after_ms.value_or(0);
  // One last try is left to who leads: to lose the lease would cost the server more than that.
  if (leading_) wished_ms = std::min(wished_ms, renewed_ms_ + times_.renew_ms - times_.call_ms - now_ms);
  // Who is to take over does not sleep through the end of a lease.
  if (!leading_) wished_ms = std::min(wished_ms, times_.duration_ms);
  next.after_ms = std::max(next.after_ms, wished_ms);
  asked_ = next.verb;
  return next;
}

void LeaderElection::Observe(const nlohmann::json& lease, int64_t now_ms) {
  const nlohmann::json* spec = FieldAt(lease, {"spec"});
  const nlohmann::json* known = FieldAt(observed_, {"spec"});
  const bool changed = known == nullptr || spec == nullptr || *known != *spec;
  if (changed) observed_ms_ = now_ms;
  observed_ = lease;
  holder_ = TextAt(lease, {"spec", "holderIdentity"});
}

nlohmann::json LeaderElection::Claim(const nlohmann::json* known, const std::string& holder, int64_t duration_ms,
                                     int64_t wall_ms) const {
  nlohmann::json lease = {{"apiVersion", "coordination.k8s.io/v1"},
                          {"kind", "Lease"},
                          {"metadata", {{"namespace", lease_key_.ns}, {"name", lease_key_.name}}}};
  int64_t transitions = 0;
  std::string acquired = MicroTime(wall_ms);
  if (known != nullptr) {
    // With the version it was read at: whoever wrote it meanwhile wins.
    lease["metadata"]["resourceVersion"] = TextAt(*known, {"metadata", "resourceVersion"});
    transitions = NumberAt(*known, {"spec", "leaseTransitions"}).value_or(0);
    const std::string since = TextAt(*known, {"spec", "acquireTime"});
    const bool same = TextAt(*known, {"spec", "holderIdentity"}) == holder;
    if (same && !since.empty()) acquired = since;
    if (!same && !holder.empty()) ++transitions;
  }
  lease["spec"] = {{"holderIdentity", holder},
                   {"leaseDurationSeconds", (duration_ms + 999) / 1000},
                   {"acquireTime", acquired},
                   {"renewTime", MicroTime(wall_ms)},
                   {"leaseTransitions", transitions}};
  return lease;
}

LeaseRequest LeaderElection::OnLease(const nlohmann::json& lease, int64_t now_ms, int64_t wall_ms) {
  Observe(lease, now_ms);
  const int64_t duration_ms = NumberAt(lease, {"spec", "leaseDurationSeconds"}).value_or(0) * 1000;
  const bool held = !holder_.empty() && holder_ != identity_ && now_ms - observed_ms_ < duration_ms;
  if (held) return GetLater({}, now_ms);
  asked_ = LeaseRequest::Verb::kUpdate;
  asked_ms_ = now_ms;
  return {LeaseRequest::Verb::kUpdate, 0, Claim(&lease, identity_, times_.duration_ms, wall_ms)};
}

LeaseRequest LeaderElection::OnAnswer(const ApiError& error, const nlohmann::json& lease, int64_t now_ms,
                                      int64_t wall_ms) {
  if (asked_ == LeaseRequest::Verb::kGet) {
    if (error.ok()) return OnLease(lease, now_ms, wall_ms);
    if (error.kind != ErrorKind::kNotFound) return GetLater(error, now_ms);
    asked_ = LeaseRequest::Verb::kCreate;
    asked_ms_ = now_ms;
    return {LeaseRequest::Verb::kCreate, 0, Claim(nullptr, identity_, times_.duration_ms, wall_ms)};
  }
  // A claim that was accepted holds from when it was made, not from when we heard of it.
  if (error.ok()) {
    Observe(lease, now_ms);
    if (!Lost(now_ms)) {
      leading_ = true;
      renewed_ms_ = asked_ms_;
    }
  }
  return GetLater(error, now_ms);
}

std::optional<nlohmann::json> LeaderElection::Release(int64_t now_ms, int64_t wall_ms) {
  if (!Leading(now_ms) || holder_ != identity_) return std::nullopt;
  leading_ = false;
  return Claim(&observed_, "", 1000, wall_ms);
}

}  // namespace kvartal::kube
