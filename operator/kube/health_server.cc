#include "operator/kube/health_server.h"

#include <cpprest/http_listener.h>

#include "absl/strings/str_cat.h"
#include "operator/kube/caught.h"
#include "operator/kube/limits.h"

namespace kvartal::kube {

using web::http::experimental::listener::http_listener;

struct HealthServer::Listener {
  explicit Listener(const std::string& uri) : http(web::uri(uri)) {}
  http_listener http;
};

HealthServer::HealthServer(EventLoop* loop, const Clock* clock, Health* health)
    : loop_(loop), clock_(clock), health_(health) {}

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Create(const std::string& address, EventLoop* loop,
                                                                   const Clock* clock, Health* health) {
  auto server = std::unique_ptr<HealthServer>(new HealthServer(loop, clock, health));
  const absl::Status opened = Caught([&] {
    server->listener_ = std::make_unique<Listener>(absl::StrCat("http://", address));
    server->listener_->http.support(web::http::methods::GET, [clock, health](const web::http::http_request& request) {
      const HealthAnswer answer = health->Answer(request.request_uri().path(), clock->MonotonicNs() / kNsPerMs);
      // A peer that is gone makes the answer fail, and that is nobody's concern.
      request.reply(static_cast<web::http::status_code>(answer.status), answer.text, "text/plain; version=0.0.4")
          .then([](const pplx::task<void>& sent) { (void)Caught([&] { sent.get(); }); });
    });
    server->listener_->http.open().get();
  });
  if (!opened.ok()) return absl::InvalidArgumentError(absl::StrCat("health address ", address, ": ", opened.message()));
  server->Beat();
  return server;
}

HealthServer::~HealthServer() {
  loop_->CancelTimer(timer_);
  // It fails when it could not be opened.
  if (listener_ != nullptr) (void)Caught([&] { listener_->http.close().get(); });
}

void HealthServer::Beat() {
  health_->Beat(clock_->MonotonicNs() / kNsPerMs);
  timer_ = loop_->RunAfterMs(kHealthBeatMs, [this] { Beat(); });
}

}  // namespace kvartal::kube
