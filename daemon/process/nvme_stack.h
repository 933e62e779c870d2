// The NVMe tier of a node with what it stands on: disks, tier, catalogs. All there, or none and a note that says why;
// of several disks those that can be opened. Confined to the engine loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/status.h"
#include "daemon/config/node_config.h"
#include "daemon/device/block_file.h"
#include "daemon/tier/disk_catalogs.h"
#include "daemon/tier/nvme_tier.h"
#include "daemon/tier/tenant_ciphers.h"

namespace kvartal::process {

// A disk of the configuration.
struct NvmeStackDisk {
  std::string path;
  std::unique_ptr<device::BlockFile> file;  // null: it is absent until the next start
  std::string note;                         // why, and what to do
  device::IoEngine engine = device::IoEngine::kPool;
  std::string engine_note;  // why it is not io_uring, though nobody asked for the pool
};

// Members are destroyed last to first: who uses another before it.
struct NvmeStack {
  std::vector<NvmeStackDisk> disks;      // as they are configured; those with a file are the tier's, in this order
  std::unique_ptr<tier::NvmeTier> tier;  // null: no disk could be opened
  std::unique_ptr<tier::DiskCatalogs> catalog;
  std::unique_ptr<tier::TenantCiphers> ciphers;  // on a node that has keys
  // What the disks that are there may be written a second, for them to last; 0: it does not matter.
  uint64_t write_bytes_per_second = 0;

  // Catalogs, then disks: what each accepted ends first. `before` is told what is waited for next.
  void Close(absl::FunctionRef<void(const std::string& what)> before);

  uint32_t absent_disks() const;
  // Of those that are there; false, or the pool, when it is so of one of them.
  bool direct_io() const;
  device::IoEngine engine() const;
};

// A full disk, a foreign file, another format version: a disk with a note, and the node serves without it.
// FailedPrecondition: another process holds a file; going on would make two daemons out of one by accident.
// `keys` may be null: a node that encrypts nothing.
absl::StatusOr<NvmeStack> OpenNvmeStack(const std::vector<config::NvmeConfig>& config,
                                        const std::shared_ptr<const cipher::KeyRing>& keys, Executor* executor,
                                        const Clock* clock);

}  // namespace kvartal::process
