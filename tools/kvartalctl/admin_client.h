// The admin service as kvartalctl sees it: every failure is a sentence that says which socket and what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "daemon/control/admin.grpc.pb.h"

namespace kvartal::ctl {

class AdminClient {
 public:
  // NotFound: no daemon there. PermissionDenied: the socket is its owner's alone.
  static absl::StatusOr<AdminClient> Connect(const std::string& socket);

  absl::StatusOr<admin::v1::StatusReply> GetStatus();
  absl::StatusOr<admin::v1::ListTenantsReply> ListTenants();
  absl::StatusOr<admin::v1::ListSessionsReply> ListSessions();
  absl::StatusOr<admin::v1::ExplainReply> Explain(const std::string& tenant);
  absl::StatusOr<admin::v1::DropReply> Drop(const std::string& tenant);
  absl::StatusOr<admin::v1::DrainReply> Drain();
  absl::StatusOr<admin::v1::ReloadPolicyReply> ReloadPolicy();
  absl::StatusOr<admin::v1::CheckInvariantsReply> CheckInvariants();

 private:
  AdminClient(std::string socket, std::unique_ptr<admin::v1::Admin::Stub> stub)
      : socket_(std::move(socket)), stub_(std::move(stub)) {}
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (admin::v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                            Reply*),
                             const Request& request, int64_t deadline_ms);
  std::string socket_;
  std::unique_ptr<admin::v1::Admin::Stub> stub_;
};

}  // namespace kvartal::ctl
