// The handlers of the admin door: each hops to the engine loop, waits for its answer there, and never touches the node
// itself. Thread-safe: gRPC threads call the handlers, Stop may come from any thread. Invariants: a handler returns by
// its deadline even when the loop is stuck or gone; after Stop every handler returns at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/mutex.h"
#include "daemon/control/admin.grpc.pb.h"
#include "daemon/control/admin_backend.h"

namespace kvartal::control {

class AdminService final : public admin::v1::Admin::Service {
 public:
  // `loop` runs the callbacks of `backend`; both outlive the service's last handler.
  AdminService(Executor* loop, AdminBackend* backend);
  ~AdminService() override;

  // Waiting handlers return UNAVAILABLE, and so do later ones.
  void Stop();

  grpc::Status GetStatus(grpc::ServerContext* context, const admin::v1::StatusRequest* request,
                         admin::v1::StatusReply* reply) override;
  grpc::Status ListTenants(grpc::ServerContext* context, const admin::v1::ListTenantsRequest* request,
                           admin::v1::ListTenantsReply* reply) override;
  grpc::Status ListSessions(grpc::ServerContext* context, const admin::v1::ListSessionsRequest* request,
                            admin::v1::ListSessionsReply* reply) override;
  grpc::Status Explain(grpc::ServerContext* context, const admin::v1::ExplainRequest* request,
                       admin::v1::ExplainReply* reply) override;
  grpc::Status Drop(grpc::ServerContext* context, const admin::v1::DropRequest* request,
                    admin::v1::DropReply* reply) override;
  grpc::Status Drain(grpc::ServerContext* context, const admin::v1::DrainRequest* request,
                     admin::v1::DrainReply* reply) override;
  grpc::Status ReloadPolicy(grpc::ServerContext* context, const admin::v1::ReloadPolicyRequest* request,
                            admin::v1::ReloadPolicyReply* reply) override;
  grpc::Status CheckInvariants(grpc::ServerContext* context, const admin::v1::CheckInvariantsRequest* request,
                               admin::v1::CheckInvariantsReply* reply) override;

 private:
  // Where handlers wait. Shared with the callbacks on the loop, which may outlive a handler that gave up.
  struct Desk {
    Mutex mutex;
    Condition answered;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };
  template <typename T>
  absl::StatusOr<T> Ask(grpc::ServerContext* context, int64_t limit_ms,
                        std::function<void(AdminBackend&, AdminBackend::Done<T>)> question);
  absl::StatusOr<NodeView> AskView(grpc::ServerContext* context);

  Executor* const loop_;
  AdminBackend* const backend_;
  const std::shared_ptr<Desk> desk_;
};

}  // namespace kvartal::control
