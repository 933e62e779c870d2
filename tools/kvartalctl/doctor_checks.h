// What `kvartalctl doctor` looks at: each check says what it found and, when it is not right, what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/config/node_config.h"
#include "daemon/control/admin.pb.h"

namespace kvartal::ctl {

struct Finding {
  enum class Level : uint8_t { kOk, kWarn, kFail };
  Level level = Level::kOk;
  std::string name;
  std::string detail;
  std::string fix;  // empty when nothing is to be done
};
const char* LevelName(Finding::Level level);

// --- the machine
Finding CheckKernel(const std::string& release);           // uname's release
Finding CheckHugePages(const std::string& shmem_enabled);  // the file's content; "" when it cannot be read
Finding CheckDescriptors(uint64_t hard_limit);
Finding CheckLockedMemory(uint64_t limit);
Finding CheckIoUring();
Finding CheckGpu();

// --- what one configuration needs
Finding CheckMemory(uint64_t dram_bytes, uint64_t total_bytes, uint64_t available_bytes);
Finding CheckPolicy(const config::NodeConfig& config);
Finding CheckRunFolder(const config::NodeConfig& config);
Finding CheckDiskSpace(const config::NvmeConfig& nvme);
Finding CheckDirectIo(const config::NvmeConfig& nvme);
Finding CheckNvmeKeys(const std::string& key_file);

// --- a running daemon
std::vector<Finding> CheckStatus(const admin::v1::StatusReply& status);

}  // namespace kvartal::ctl
