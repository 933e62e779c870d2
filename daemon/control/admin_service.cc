#include "daemon/control/admin_service.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/control/admin_reply.h"
#include "daemon/control/explain.h"

namespace kvartal::control {
namespace {

namespace pb = admin::v1;
using SystemTime = std::chrono::system_clock;

constexpr std::chrono::milliseconds kGoneLookPeriod{100};  // between looks at whether the caller is still there

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace

AdminService::AdminService(Executor* loop, AdminBackend* backend)
    : loop_(loop), backend_(backend), desk_(std::make_shared<Desk>()) {}

AdminService::~AdminService() = default;

void AdminService::Stop() {
  MutexLock lock(desk_->mutex);
  desk_->stopping = true;
  desk_->answered.NotifyAll();
}

template <typename T>
absl::StatusOr<T> AdminService::Ask(grpc::ServerContext* context, int64_t limit_ms,
                                    std::function<void(AdminBackend&, AdminBackend::Done<T>)> question) {
  struct Answer {
    std::optional<absl::StatusOr<T>> value;  // Guarded by Desk::mutex
    bool begun = false;                      // Guarded by Desk::mutex
    bool abandoned = false;                  // Guarded by Desk::mutex
  };
  const auto answer = std::make_shared<Answer>();
  const std::shared_ptr<Desk> desk = desk_;
  {
    MutexLock lock(desk->mutex);
    if (desk->stopping) return absl::UnavailableError("the daemon is going down");
  }
  loop_->Post([desk, answer, backend = backend_, question = std::move(question)] {
    {
      // Whoever gave up must not have its request carried out later.
      MutexLock lock(desk->mutex);
      if (answer->abandoned || desk->stopping) return;
      answer->begun = true;
    }
    question(*backend, [desk, answer](absl::StatusOr<T> value) {
      MutexLock lock(desk->mutex);
      answer->value = std::move(value);
      desk->answered.NotifyAll();
    });
  });
  const auto until =
      std::min<SystemTime::time_point>(context->deadline(), SystemTime::now() + std::chrono::milliseconds(limit_ms));
  MutexLock lock(desk->mutex);
  // Whoever has gone away keeps no thread: there are few, and the liveness probe needs one.
  for (auto now = SystemTime::now();
       !answer->value.has_value() && !desk->stopping && now < until && !context->IsCancelled();
       now = SystemTime::now()) {
    desk->answered.WaitFor(desk->mutex, std::min<SystemTime::duration>(until - now, kGoneLookPeriod));
  }
  if (answer->value.has_value()) return *std::move(answer->value);
  answer->abandoned = true;
  if (desk->stopping) return absl::UnavailableError("the daemon is going down");
  if (answer->begun) {
    return absl::DeadlineExceededError(
        "not finished by the deadline; the daemon goes on with it: its log and its audit log tell how it ends");
  }
  return absl::DeadlineExceededError(
      "no answer from the engine loop by the deadline; the daemon is busy or stuck: see its log, then try again");
}

absl::StatusOr<NodeView> AdminService::AskView(grpc::ServerContext* context) {
  return Ask<NodeView>(context, kAdminAnswerMs,
                       [](AdminBackend& backend, AdminBackend::Done<NodeView> done) { done(backend.View()); });
}

grpc::Status AdminService::GetStatus(grpc::ServerContext* context, const pb::StatusRequest*, pb::StatusReply* reply) {
  const absl::StatusOr<NodeView> view = AskView(context);
  if (!view.ok()) return ToGrpc(view.status());
  FillStatus(*view, reply);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListTenants(grpc::ServerContext* context, const pb::ListTenantsRequest*,
                                       pb::ListTenantsReply* reply) {
  const absl::StatusOr<NodeView> view = AskView(context);
  if (!view.ok()) return ToGrpc(view.status());
  FillTenants(*view, reply);
  return grpc::Status::OK;
}

grpc::Status AdminService::ListSessions(grpc::ServerContext* context, const pb::ListSessionsRequest*,
                                        pb::ListSessionsReply* reply) {
  const absl::StatusOr<NodeView> view = AskView(context);
  if (!view.ok()) return ToGrpc(view.status());
  FillSessions(*view, reply);
  return grpc::Status::OK;
}

grpc::Status AdminService::Explain(grpc::ServerContext* context, const pb::ExplainRequest* request,
                                   pb::ExplainReply* reply) {
  const absl::StatusOr<NodeView> view = AskView(context);
  if (!view.ok()) return ToGrpc(view.status());
  const absl::Status filled = FillExplain(*view, request->tenant(), reply);
  return filled.ok() ? grpc::Status::OK : ToGrpc(filled);
}

grpc::Status AdminService::Drop(grpc::ServerContext* context, const pb::DropRequest* request, pb::DropReply* reply) {
  if (request->tenant().empty()) return ToGrpc(absl::InvalidArgumentError("drop: no tenant named"));
  const auto bytes =
      Ask<uint64_t>(context, kAdminLongAnswerMs,
                    [tenant = request->tenant()](AdminBackend& backend, AdminBackend::Done<uint64_t> done) {
                      backend.Drop(tenant, std::move(done));
                    });
  if (!bytes.ok()) return ToGrpc(bytes.status());
  Log(LogLevel::kInfo, "admin", "dropped tenant ", request->tenant(), ": ", *bytes, " bytes deleted");
  reply->set_bytes(*bytes);
  return grpc::Status::OK;
}

grpc::Status AdminService::Drain(grpc::ServerContext* context, const pb::DrainRequest*, pb::DrainReply*) {
  const auto drained = Ask<bool>(context, kAdminLongAnswerMs, [](AdminBackend& backend, AdminBackend::Done<bool> done) {
    backend.Drain(std::move(done));
  });
  return drained.ok() ? grpc::Status::OK : ToGrpc(drained.status());
}

grpc::Status AdminService::ReloadPolicy(grpc::ServerContext* context, const pb::ReloadPolicyRequest*,
                                        pb::ReloadPolicyReply* reply) {
  const auto reload = Ask<PolicyReload>(
      context, kAdminAnswerMs,
      [](AdminBackend& backend, AdminBackend::Done<PolicyReload> done) { backend.ReloadPolicy(std::move(done)); });
  if (!reload.ok()) return ToGrpc(reload.status());
  reply->set_policy_version(reload->version);
  for (const std::string& warning : reload->warnings) reply->add_warnings(warning);
  return grpc::Status::OK;
}

grpc::Status AdminService::CheckInvariants(grpc::ServerContext* context, const pb::CheckInvariantsRequest*,
                                           pb::CheckInvariantsReply* reply) {
  const auto entries = Ask<uint64_t>(
      context, kAdminLongAnswerMs,
      [](AdminBackend& backend, AdminBackend::Done<uint64_t> done) { backend.CheckInvariants(std::move(done)); });
  if (!entries.ok()) return ToGrpc(entries.status());
  reply->set_entries(*entries);
  return grpc::Status::OK;
}

}  // namespace kvartal::control
