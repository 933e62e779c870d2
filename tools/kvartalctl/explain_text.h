// What the daemon explains of a tenant, as plain words for a terminal and as data. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/control/admin.pb.h"

namespace kvartal::ctl {

std::string ExplainText(const admin::v1::ExplainReply& reply);
// As ToJson, but for a cap that is none: null.
nlohmann::ordered_json ExplainJson(const admin::v1::ExplainReply& reply);

}  // namespace kvartal::ctl
