#include "daemon/process/nvme_stack.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/device/fair_block_file.h"

namespace kvartal::process {
namespace {

NvmeStack Offline(const absl::Status& why) {
  NvmeStack stack;
  stack.note =
      absl::StrCat("offline since the start of the daemon: ", why.message(), "; restart kvartald when that is done");
  Log(LogLevel::kError, "node", "nvme ", stack.note, ". Serving without it");
  return stack;
}

std::optional<device::IoEngine> EngineOf(const config::NvmeConfig& config) {
  if (config.io == "uring") return device::IoEngine::kUring;
  if (config.io == "pool") return device::IoEngine::kPool;
  return std::nullopt;
}

}  // namespace

absl::StatusOr<NvmeStack> OpenNvmeStack(const config::NvmeConfig& config,
                                        const std::shared_ptr<const cipher::KeyRing>& keys, Executor* executor,
                                        const Clock* clock) {
  NvmeStack stack;
  device::BlockFileOptions file_options;
  file_options.path = config.path;
  file_options.size_bytes = config.size_bytes;
  file_options.depth = config.io_threads;
  file_options.engine = EngineOf(config);
  file_options.queue_max = kDiskQueueMax;
  absl::StatusOr<device::OpenedBlockFile> disk = device::OpenBlockFile(file_options, executor);
  if (absl::IsFailedPrecondition(disk.status())) return disk.status();
  if (!disk.ok()) return Offline(disk.status());
  stack.engine = disk->engine;
  stack.engine_note = disk->note;
  device::FairBlockFileOptions turns;
  turns.under_way_min = static_cast<size_t>(config.io_threads) * kDiskTransfersPerPlace;
  stack.file = device::NewFairBlockFile(std::move(disk->file), turns);

  absl::StatusOr<std::unique_ptr<tier::NvmeTier>> opened = tier::NvmeTier::Open(stack.file.get(), clock);
  if (!opened.ok()) {
    return Offline(absl::Status(opened.status().code(), absl::StrCat(config.path, ": ", opened.status().message())));
  }
  stack.tier = *std::move(opened);

  tier::CatalogOptions catalog_options;
  catalog_options.path = absl::StrCat(config.path, ".catalog");
  catalog_options.device_id = stack.tier->device_id();
  absl::StatusOr<std::unique_ptr<tier::NvmeCatalog>> catalog = tier::OpenRocksCatalog(catalog_options, executor);
  if (!catalog.ok()) return Offline(catalog.status());
  stack.catalog = *std::move(catalog);
  if (keys != nullptr) stack.ciphers = std::make_unique<tier::TenantCiphers>(keys, stack.catalog.get());
  return stack;
}

}  // namespace kvartal::process
