#include "daemon/device/block_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/device/block_file_setup.h"
#include "daemon/device/pool_block_file.h"
#include "daemon/device/uring_block_file.h"

namespace kvartal::device {

absl::StatusOr<OpenedBlockFile> OpenBlockFile(const BlockFileOptions& options, Executor* executor) {
  KV_ASSIGN_OR_RETURN(DiskFile file, SetUpBlockFile(options));
  OpenedBlockFile opened;
  if (options.engine != IoEngine::kPool) {
    auto uring = UringBlockFile::Open(&file, options, executor);
    if (uring.ok()) return OpenedBlockFile{*std::move(uring), IoEngine::kUring, ""};
    const std::string why(uring.status().message());
    if (options.engine == IoEngine::kUring) {
      return absl::UnimplementedError(absl::StrCat(
          options.path, " was to be used through io_uring and cannot be: ", why, "; or set nvme.io: auto"));
    }
    opened.note = absl::StrCat("a pool of threads does the I/O instead of io_uring: ", why);
    Log(LogLevel::kWarning, "device", options.path, ": ", opened.note);
  }
  opened.file = std::make_unique<PoolBlockFile>(std::move(file), options, executor);
  return opened;
}

}  // namespace kvartal::device
