// Plain structs of the node -> messages of the admin door. Pure.
#pragma once

#include "daemon/control/admin.pb.h"
#include "daemon/control/admin_backend.h"

namespace kvartal::control {

void FillStatus(const NodeView& view, admin::v1::StatusReply* reply);
void FillTenants(const NodeView& view, admin::v1::ListTenantsReply* reply);
void FillSessions(const NodeView& view, admin::v1::ListSessionsReply* reply);

}  // namespace kvartal::control
