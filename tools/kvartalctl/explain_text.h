// What the daemon explains of a tenant, as plain words for a terminal. Pure.
#pragma once

#include <string>

#include "daemon/control/admin.pb.h"

namespace kvartal::ctl {

std::string ExplainText(const admin::v1::ExplainReply& reply);

}  // namespace kvartal::ctl
