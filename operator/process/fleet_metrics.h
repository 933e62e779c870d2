// The operator's own numbers as Prometheus text. Pure.
#pragma once

#include <string>

#include "operator/process/status_writer.h"
#include "operator/sync/fleet.h"

namespace kvartal::process {

std::string FleetText(const sync::FleetStats& fleet, const StatusWriterStats& writer, uint64_t decisions,
                      int64_t last_decision_us);

}  // namespace kvartal::process
