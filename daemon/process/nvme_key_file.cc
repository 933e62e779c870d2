#include "daemon/process/nvme_key_file.h"

#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::process {

NvmeKeyFile::NvmeKeyFile(std::string path, EventLoop* loop)
    : path_(std::move(path)), loop_(loop), reader_(std::make_unique<WorkerPool>("kv-nvme-keys", 1, 1)) {
  Take(cipher::NodeKeys::Read(path_));
  loop_->RunAfterMs(kNodeKeysPollMs, [this] { Poll(); });
}

void NvmeKeyFile::Poll() {
  // A folder that does not answer holds one reading, not a queue of them.
  if (!reading()) {
    const bool accepted =
        reader_->TrySubmit([this] { loop_->Post([this, keys = cipher::NodeKeys::Read(path_)] { Take(keys); }); });
    KV_CHECK(accepted);  // only this thread submits
  }
  loop_->RunAfterMs(kNodeKeysPollMs, [this] { Poll(); });
}

void NvmeKeyFile::Take(const Keys& keys) {
  if (!keys.ok()) {
    if (std::string error(keys.status().message()); error != last_error_) {
      last_error_ = std::move(error);
      Log(LogLevel::kError, "nvme", "the keys are refused, those from before stay in use: ", last_error_);
    }
    return;
  }
  last_error_.clear();
  if ((*keys)->Equals(*ring_->keys())) return;
  ring_->Set(*keys);
  const uint32_t newest = (*keys)->newest();
  if (newest == 0) {
    Log(LogLevel::kWarning, "nvme", path_, " has no key: nothing that has to be encrypted is written");
  } else {
    Log(LogLevel::kInfo, "nvme", "blocks are encrypted under key ", newest, " from now on; ", (*keys)->size(),
        " keys are there to read by");
  }
}

}  // namespace kvartal::process
