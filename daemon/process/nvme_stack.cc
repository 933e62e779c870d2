#include "daemon/process/nvme_stack.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"
#include "daemon/device/fair_block_file.h"
#include "daemon/tier/nvme_disk.h"

namespace kvartal::process {
namespace {

std::optional<device::IoEngine> EngineOf(const config::NvmeConfig& config) {
  if (config.io == "uring") return device::IoEngine::kUring;
  if (config.io == "pool") return device::IoEngine::kPool;
  return std::nullopt;
}

std::string CatalogPath(const std::string& disk_path) { return disk_path + ".catalog"; }

struct OpenDisk {
  NvmeStackDisk stack;
  std::shared_ptr<tier::NvmeDisk> disk;
  std::unique_ptr<tier::NvmeCatalog> catalog;
};

absl::StatusOr<std::unique_ptr<device::BlockFile>> OpenFile(const config::NvmeConfig& config, Executor* executor,
                                                            NvmeStackDisk* out) {
  device::BlockFileOptions options;
  options.path = config.path;
  options.size_bytes = config.size_bytes;
  options.depth = config.io_threads;
  options.engine = EngineOf(config);
  options.queue_max = kDiskQueueMax;
  options.judge = tier::JudgeFront;
  KV_ASSIGN_OR_RETURN(device::OpenedBlockFile disk, device::OpenBlockFile(options, executor));
  out->engine = disk.engine;
  out->engine_note = disk.note;
  device::FairBlockFileOptions turns;
  turns.under_way_min = static_cast<size_t>(config.io_threads) * kDiskTransfersPerPlace;
  return device::NewFairBlockFile(std::move(disk.file), turns);
}

absl::Status OpenOn(const config::NvmeConfig& config, Executor* executor, const Clock* clock, OpenDisk* out) {
  auto disk = tier::NvmeDisk::Open(out->stack.file.get(), clock);
  if (!disk.ok()) {
    return absl::Status(disk.status().code(), absl::StrCat(config.path, ": ", disk.status().message()));
  }
  tier::CatalogOptions options;
  options.path = CatalogPath(config.path);
  options.device_id = (*disk)->device_id();
  options.sync_data = [file = out->stack.file.get()] { return file->Sync(); };
  KV_ASSIGN_OR_RETURN(out->catalog, tier::OpenRocksCatalog(options, executor));
  out->disk = *std::move(disk);
  return absl::OkStatus();
}

// Not OK: the file is another process's. Else it has a disk, or a note.
absl::StatusOr<OpenDisk> OpenOne(const config::NvmeConfig& config, Executor* executor, const Clock* clock) {
  OpenDisk out;
  out.stack.path = config.path;
  absl::StatusOr<std::unique_ptr<device::BlockFile>> file = OpenFile(config, executor, &out.stack);
  if (absl::IsFailedPrecondition(file.status())) return file.status();
  absl::Status status = file.status();
  if (status.ok()) {
    out.stack.file = *std::move(file);
    status = OpenOn(config, executor, clock, &out);
  }
  if (status.ok()) return out;
  out.disk = nullptr;
  out.stack.file = nullptr;
  out.stack.note =
      absl::StrCat("offline since the start of the daemon: ", status.message(), "; restart kvartald when that is done");
  Log(LogLevel::kError, "node", "nvme ", out.stack.note, ". Serving without it");
  return out;
}

}  // namespace

void NvmeStack::Close(absl::FunctionRef<void(const std::string& what)> before) {
  std::vector<NvmeStackDisk*> present;
  for (NvmeStackDisk& disk : disks) {
    if (disk.file != nullptr) present.push_back(&disk);
  }
  ciphers.reset();
  if (catalog != nullptr)
    catalog->Close([&](size_t disk) { before(absl::StrCat("the catalog ", CatalogPath(present[disk]->path))); });
  catalog.reset();
  tier.reset();
  for (NvmeStackDisk* const disk : present) {
    before(absl::StrCat("the disk ", disk->path));
    disk->file.reset();
  }
}

uint32_t NvmeStack::absent_disks() const {
  return static_cast<uint32_t>(
      std::count_if(disks.begin(), disks.end(), [](const NvmeStackDisk& disk) { return disk.file == nullptr; }));
}

bool NvmeStack::direct_io() const {
  return tier != nullptr && std::all_of(disks.begin(), disks.end(), [](const NvmeStackDisk& disk) {
           return disk.file == nullptr || disk.file->direct_io();
         });
}

device::IoEngine NvmeStack::engine() const {
  const bool all_uring = std::all_of(disks.begin(), disks.end(), [](const NvmeStackDisk& disk) {
    return disk.file == nullptr || disk.engine == device::IoEngine::kUring;
  });
  return all_uring ? device::IoEngine::kUring : device::IoEngine::kPool;
}

absl::StatusOr<NvmeStack> OpenNvmeStack(const std::vector<config::NvmeConfig>& config,
                                        const std::shared_ptr<const cipher::KeyRing>& keys, Executor* executor,
                                        const Clock* clock) {
  NvmeStack stack;
  std::vector<std::shared_ptr<tier::NvmeDisk>> disks;
  std::vector<std::unique_ptr<tier::NvmeCatalog>> catalogs;
  for (const config::NvmeConfig& one : config) {
    KV_ASSIGN_OR_RETURN(OpenDisk opened, OpenOne(one, executor, clock));
    stack.disks.push_back(std::move(opened.stack));
    if (opened.disk == nullptr) continue;
    disks.push_back(std::move(opened.disk));
    catalogs.push_back(std::move(opened.catalog));
    stack.write_bytes_per_second += config::WriteBytesPerSecond(one);
  }
  if (disks.empty()) return stack;
  stack.tier = std::make_unique<tier::NvmeTier>(std::move(disks));
  stack.catalog = std::make_unique<tier::DiskCatalogs>(std::move(catalogs), stack.tier->map());
  if (keys != nullptr)
    stack.ciphers = std::make_unique<tier::TenantCiphers>(keys, stack.catalog.get(), stack.absent_disks());
  return stack;
}

}  // namespace kvartal::process
