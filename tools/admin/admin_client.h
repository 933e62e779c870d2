// The admin service of a daemon, as every tool asks it. A failure is a sentence that says which socket and what to do.
// Confined to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "daemon/control/admin.grpc.pb.h"

namespace kvartal::admin {

class AdminClient {
 public:
  // For a person who waits. NotFound: no daemon there. PermissionDenied: the socket is its owner's alone.
  static absl::StatusOr<AdminClient> Connect(const std::string& socket);
  // For a program that starts and kills daemons: every call waits until one is there.
  static AdminClient WaitingFor(const std::string& socket);

  absl::StatusOr<admin::v1::StatusReply> GetStatus();
  absl::StatusOr<admin::v1::ListTenantsReply> ListTenants();
  absl::StatusOr<admin::v1::Tenant> GetTenant(const std::string& name);
  absl::StatusOr<admin::v1::ListSessionsReply> ListSessions();
  absl::StatusOr<admin::v1::ExplainReply> Explain(const std::string& tenant);
  absl::StatusOr<admin::v1::DropReply> Drop(const std::string& tenant);
  absl::StatusOr<admin::v1::DrainReply> Drain();
  absl::StatusOr<admin::v1::ReloadPolicyReply> ReloadPolicy();
  // Not OK when ledger and index disagree with what is recomputed from scratch.
  absl::StatusOr<admin::v1::CheckInvariantsReply> CheckInvariants();

 private:
  AdminClient(std::string socket, bool waits, std::unique_ptr<admin::v1::Admin::Stub> stub)
      : socket_(std::move(socket)), waits_(waits), stub_(std::move(stub)) {}
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (admin::v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                            Reply*),
                             const Request& request, int64_t deadline_ms);
  std::string socket_;
  bool waits_;
  std::unique_ptr<admin::v1::Admin::Stub> stub_;
};

// The tier of that name; an empty one when the reply lacks it.
const admin::v1::TenantTier& TierOf(const admin::v1::Tenant& tenant, const std::string& name);
// Refusals of all reasons.
uint64_t RefusalsOf(const admin::v1::TenantTier& tier);

}  // namespace kvartal::admin
