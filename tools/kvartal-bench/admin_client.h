// The daemon's own counters, asked over the admin gRPC service.
// Confined to one thread.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/status.h"
#include "daemon/control/admin.pb.h"

namespace kvartal::bench {

class AdminClient {
 public:
  explicit AdminClient(const std::string& socket_path);
  ~AdminClient();

  absl::StatusOr<admin::v1::StatusReply> GetStatus();
  absl::StatusOr<admin::v1::Tenant> GetTenant(const std::string& name);
  absl::StatusOr<admin::v1::ListTenantsReply> ListTenants();
  absl::Status ReloadPolicy();
  // Not OK when ledger and index disagree with what is recomputed from scratch.
  absl::Status CheckInvariants();

 private:
  struct Channel;
  const std::string socket_path_;
  std::unique_ptr<Channel> channel_;
};

// The tier of that name; an empty one when the reply lacks it.
const admin::v1::TenantTier& TierOf(const admin::v1::Tenant& tenant, const std::string& name);
// Refusals of all reasons.
uint64_t RefusalsOf(const admin::v1::TenantTier& tier);

}  // namespace kvartal::bench
