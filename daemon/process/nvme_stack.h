// The NVMe tier of a node with what it stands on: data file, tier, catalog. All there, or none and a note that says
// why. Confined to the engine loop.
#pragma once

#include <memory>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/config/node_config.h"
#include "daemon/device/block_file.h"
#include "daemon/tier/nvme_catalog.h"
#include "daemon/tier/nvme_tier.h"
#include "daemon/tier/tenant_ciphers.h"

namespace kvartal::process {

// Members are destroyed last to first: who uses another before it.
struct NvmeStack {
  std::unique_ptr<device::BlockFile> file;
  std::unique_ptr<tier::NvmeTier> tier;
  std::unique_ptr<tier::NvmeCatalog> catalog;
  std::unique_ptr<tier::TenantCiphers> ciphers;  // on a node that has keys
  std::string note;                              // why the tier is offline and what to do; empty when it serves
  device::IoEngine engine = device::IoEngine::kPool;
  std::string engine_note;  // why it is not io_uring, though nobody asked for the pool
};

// A full disk, a foreign file, another format version: a stack with a note, and the node serves without the tier.
// FailedPrecondition: another process holds the file; going on would make two daemons out of one by accident.
// `keys` may be null: a node that encrypts nothing.
absl::StatusOr<NvmeStack> OpenNvmeStack(const config::NvmeConfig& config,
                                        const std::shared_ptr<const cipher::KeyRing>& keys, Executor* executor,
                                        const Clock* clock);

}  // namespace kvartal::process
