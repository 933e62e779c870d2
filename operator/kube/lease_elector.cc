#include "operator/kube/lease_elector.h"

#include "daemon/base/log.h"

namespace kvartal::kube {
namespace {

const ResourceType kLeases = {"coordination.k8s.io", "v1", "leases", true};

}  // namespace

LeaseElector::LeaseElector(ApiClient* client, EventLoop* loop, const Clock* clock, ObjectKey lease,
                           LeaderElection election, Sink sink)
    : client_(client),
      loop_(loop),
      clock_(clock),
      lease_key_(std::move(lease)),
      election_(std::move(election)),
      sink_(std::move(sink)) {}

LeaseElector::~LeaseElector() { Stop(); }

void LeaseElector::Stop() {
  over_ = true;
  client_->Cancel(call_);
  loop_->CancelTimer(timer_);
  loop_->CancelTimer(watchdog_);
}

void LeaseElector::Start() { Schedule(election_.Start()); }

void LeaseElector::Schedule(LeaseRequest request) {
  const int64_t after_ms = request.after_ms;
  timer_ = loop_->RunAfterMs(after_ms, [this, request = std::move(request)] { Send(request); });
}

void LeaseElector::Send(const LeaseRequest& request) {
  ApiRequest call;
  call.deadline_ms = election_.times().call_ms;
  // Behind the statuses of many policies the lease would be lost, and the next leader would lose it the same way.
  call.at_once = true;
  call.target = PathOf(kLeases, lease_key_);
  if (request.verb != LeaseRequest::Verb::kGet) {
    const bool create = request.verb == LeaseRequest::Verb::kCreate;
    call.method = create ? "POST" : "PUT";
    if (create) call.target = PathOf(kLeases, lease_key_.ns);
    call.body = request.lease.dump();
    call.content_type = kJson;
  }
  call_ = client_->Call(std::move(call),
                        [this](const ApiError& error, const nlohmann::json& lease) { OnAnswer(error, lease); });
}

void LeaseElector::OnAnswer(const ApiError& error, const nlohmann::json& lease) {
  Schedule(election_.OnAnswer(error, lease, NowMs(), clock_->WallMs()));
  if (told_ || !election_.Leading(NowMs())) return;
  told_ = true;
  Log(LogLevel::kInfo, "kube", "leading by lease ", lease_key_.ToString());
  Watch();
  sink_.on_leading();
}

void LeaseElector::Watch() {
  if (election_.Lost(NowMs())) {
    Log(LogLevel::kError, "kube", "lease ", lease_key_.ToString(), " is lost; held by '", election_.holder(), "'");
    Stop();
    sink_.on_lost();
    return;
  }
  // A tenth of the time in which somebody else may not have taken over yet.
  const int64_t period_ms = std::max<int64_t>(1, (election_.times().duration_ms - election_.times().renew_ms) / 10);
  watchdog_ = loop_->RunAfterMs(period_ms, [this] { Watch(); });
}

void LeaseElector::Release(absl::AnyInvocable<void()> done) {
  Stop();
  const std::optional<nlohmann::json> lease = election_.Release(NowMs(), clock_->WallMs());
  if (!lease) return done();
  ApiRequest call;
  call.method = "PUT";
  call.deadline_ms = election_.times().call_ms;
  call.target = PathOf(kLeases, lease_key_);
  call.body = lease->dump();
  call.content_type = kJson;
  call_ =
      client_->Call(std::move(call), [done = std::move(done)](const ApiError& error, const nlohmann::json&) mutable {
        if (!error.ok()) Log(LogLevel::kWarning, "kube", "the lease was not given up: ", error.ToString());
        done();
      });
}

}  // namespace kvartal::kube
