#include "tools/kvartal-bench/fleet_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/kube/kube_session.h"
#include "tools/kvartal-bench/progress.h"

namespace kvartal::bench {
namespace {

constexpr size_t kCallsAtOnce = 16;

}  // namespace

absl::Status FleetCluster::Start() {
  KV_RETURN_IF_ERROR(server_.Start());
  testing::KubeSession session(server_.admin());
  KV_RETURN_IF_ERROR(testing::InstallCrds(&session));
  KV_ASSIGN_OR_RETURN(transport_, kube::CpprestTransport::Create(server_.admin(), loop_));
  return absl::OkStatus();
}

void FleetCluster::Kill() { server_.KillApiServer(); }

absl::Status FleetCluster::Restart() {
  KV_RETURN_IF_ERROR(server_.Start());
  // The other's connections are to the one that is gone.
  KV_ASSIGN_OR_RETURN(transport_, kube::CpprestTransport::Create(server_.admin(), loop_));
  return absl::OkStatus();
}

void FleetCluster::Begin(const std::string& method, const std::string& target, const std::string& body,
                         const std::string& content_type, Done done) {
  struct Answer {
    int status = 0;
    std::string body;
  };
  auto answer = std::make_shared<Answer>();
  kube::HttpRequest request;
  request.method = method;
  request.target = target;
  request.body = body;
  request.content_type = content_type;
  kube::HttpSink sink;
  sink.on_head = [answer](const kube::HttpHead& head) { answer->status = head.status; };
  sink.on_bytes = [answer](std::string_view bytes) { answer->body.append(bytes); };
  sink.on_end = [answer, target, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) return done(status);
    if (answer->status < 200 || answer->status > 299)
      return done(absl::InternalError(absl::StrCat(target, ": ", answer->status, ": ", answer->body)));
    done(std::move(answer->body));
  };
  transport_->Start(std::move(request), std::move(sink));
}

absl::Status FleetCluster::MakeMany(const std::string& what, const std::string& target, size_t count,
                                    const std::function<std::string(size_t)>& body) {
  Progress progress(what, count);
  absl::Status failure;
  size_t begun = 0, done = 0;
  while (done < begun || (failure.ok() && begun < count)) {
    while (failure.ok() && begun < count && begun - done < kCallsAtOnce) {
      Begin("POST", target, body(begun), "application/json", [&](const absl::StatusOr<std::string>& answer) {
        ++done;
        failure.Update(answer.status());
      });
      ++begun;
    }
    loop_->RunOnce(100);
    progress.Update(done);
  }
  return failure;
}

absl::StatusOr<std::string> FleetCluster::Call(const std::string& method, const std::string& target,
                                               const std::string& body, const std::string& content_type) {
  std::optional<absl::StatusOr<std::string>> result;
  Begin(method, target, body, content_type, [&](absl::StatusOr<std::string> answer) { result = std::move(answer); });
  while (!result) loop_->RunOnce(100);
  return *std::move(result);
}

}  // namespace kvartal::bench
