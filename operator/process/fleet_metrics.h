// The operator's own numbers as Prometheus text. Pure.
#pragma once

#include <string>
#include <vector>

#include "operator/process/pool_writer.h"
#include "operator/process/status_writer.h"
#include "operator/sync/fleet.h"

namespace kvartal::process {

std::string FleetText(const sync::FleetStats& fleet, const StatusWriterStats& policies, const PoolWriterStats& pools,
                      uint64_t decisions, int64_t last_decision_us);
std::string WatchText(const std::vector<ClusterWatch::Report>& reports, uint64_t calls_delayed);

}  // namespace kvartal::process
