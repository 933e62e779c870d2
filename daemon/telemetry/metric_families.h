// Plain numbers -> Prometheus families. Pure.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "daemon/telemetry/node_metrics.h"

namespace kvartal::telemetry {

// At most kMetricTenantsMax lines a tenant metric and tier; further tenants are summed under kOtherTenants.
std::vector<prometheus::MetricFamily> ToFamilies(const NodeMetrics& metrics);

}  // namespace kvartal::telemetry
