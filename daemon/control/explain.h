// What `kvartalctl explain` is told of one tenant: what it holds and may hold, and what was decided about it. Pure.
#pragma once

#include <string>

#include "daemon/base/status.h"
#include "daemon/control/admin.pb.h"
#include "daemon/control/admin_backend.h"

namespace kvartal::control {

// NotFound names the tenants there are.
absl::Status FillExplain(const NodeView& view, const std::string& tenant, admin::v1::ExplainReply* reply);

}  // namespace kvartal::control
