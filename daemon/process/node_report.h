// The numbers of a node, gathered from its parts into the plain structs that admin service and exporter show.
// Confined to the engine loop.
#pragma once

#include <string>

#include "daemon/attach/attach_server.h"
#include "daemon/base/clock.h"
#include "daemon/config/node_config.h"
#include "daemon/control/admin_backend.h"
#include "daemon/device/host_memory.h"
#include "daemon/engine/cache_engine.h"
#include "daemon/process/node_audit.h"
#include "daemon/process/node_policy.h"
#include "daemon/process/nvme_key_file.h"
#include "daemon/process/nvme_stack.h"
#include "daemon/process/token_key_file.h"
#include "daemon/telemetry/node_metrics.h"

namespace kvartal::process {

// What the numbers come from. Not owned.
struct NodeParts {
  const config::NodeConfig* config = nullptr;
  const Clock* clock = nullptr;
  const NodePolicy* policy = nullptr;
  const device::HostMemory* memory = nullptr;
  const NvmeStack* nvme = nullptr;
  const NvmeKeyFile* nvme_keys = nullptr;  // where a file has them
  const engine::CacheEngine* engine = nullptr;
  const attach::AttachServer* attach = nullptr;
  const NodeAudit* audit = nullptr;
  const TokenKeyFile* token_keys = nullptr;  // where a file has them
  bool operator_keys_refused = false;        // where the operator tells them: the last that it told
  int64_t started_ns = 0;
  std::string metrics_address;  // "" while the exporter is off
  std::string metrics_error;    // why it is, where it should not be
};

control::NodeView ViewOf(const NodeParts& parts);
telemetry::NodeMetrics MetricsOf(const NodeParts& parts);
// What each tenant of the policy holds, by name.
std::vector<control::TenantUse> UseOf(const engine::CacheEngine& engine);

// What has to end before the parts can be taken down, in words, with the disks that hold it up; "": nothing.
std::string UnderWayOf(const NodeParts& parts);

// Resident memory of this process without shared memory, so without the arenas. 0 when the kernel does not tell.
uint64_t OwnResidentBytes();

}  // namespace kvartal::process
