// What a configuration says of its node: what it has, and what it knows clients by. Pure.
#pragma once

#include "daemon/config/node_config.h"
#include "daemon/control/subject_reach.h"
#include "daemon/policy/policy_table.h"

namespace kvartal::process {

policy::NodeCapacity CapacityOf(const config::NodeConfig& config);
control::NodeIdentities IdentitiesOf(const config::NodeConfig& config);

}  // namespace kvartal::process
