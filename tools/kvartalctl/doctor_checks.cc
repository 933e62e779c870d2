#include "tools/kvartalctl/doctor_checks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "crds/field_reader.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/units.h"
#include "daemon/cipher/node_keys.h"
#include "daemon/control/policy_source.h"
#include "daemon/device/uring.h"
#include "daemon/process/described_node.h"
#include "tools/kvartalctl/output.h"

namespace kvartal::ctl {
namespace {

using Level = Finding::Level;

constexpr int kKernelMajorMin = 5, kKernelMinorMin = 14;   // MADV_POPULATE_WRITE
constexpr int kKernelMajorGood = 6, kKernelMinorGood = 5;  // SO_PEERPIDFD
constexpr uint64_t kDescriptorsASession = 2;               // its socket and its peer's pidfd
constexpr uint64_t kDescriptorsOfTheDaemon = 512;          // arenas, RocksDB, gRPC
constexpr uint64_t kRoomForOthersPercent = 10;             // of memory, for everything else on the node

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

const char* LevelName(Level level) {
  switch (level) {
    case Level::kOk:
      return "OK";
    case Level::kWarn:
      return "WARN";
    case Level::kFail:
      return "FAIL";
  }
  return "?";
}

Finding CheckKernel(const std::string& release) {
  int major = 0, minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) != 2) {
    return {Level::kWarn, "kernel", absl::StrCat("cannot read the version ", release), ""};
  }
  const auto at_least = [&](int want_major, int want_minor) {
    return major > want_major || (major == want_major && minor >= want_minor);
  };
  if (!at_least(kKernelMajorMin, kKernelMinorMin)) {
    return {Level::kFail, "kernel", absl::StrCat(release, " cannot populate memory ahead of use"),
            absl::StrCat("use Linux ", kKernelMajorMin, ".", kKernelMinorMin, " or newer")};
  }
  if (!at_least(kKernelMajorGood, kKernelMinorGood)) {
    return {
        Level::kWarn, "kernel",
        absl::StrCat(release,
                     " has no SO_PEERPIDFD: a pod that dies while something still holds its socket is noticed late"),
        absl::StrCat("use Linux ", kKernelMajorGood, ".", kKernelMinorGood, " or newer")};
  }
  return {Level::kOk, "kernel", release, ""};
}

Finding CheckHugePages(const std::string& shmem_enabled) {
  const std::string fix = "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  if (shmem_enabled.empty()) return {Level::kWarn, "huge pages", "this kernel has none for shared memory", ""};
  for (const char* good : {"[advise]", "[always]", "[within_size]", "[force]"}) {
    if (shmem_enabled.find(good) != std::string::npos) {
      return {Level::kOk, "huge pages", absl::StrCat("for shared memory: ", good), ""};
    }
  }
  return {Level::kWarn, "huge pages", "off for shared memory: populating the cache costs about ten times more", fix};
}

Finding CheckDescriptors(uint64_t hard_limit) {
  const uint64_t wanted = kSessionsMax * kDescriptorsASession + kDescriptorsOfTheDaemon;
  if (hard_limit >= wanted) return {Level::kOk, "open files", absl::StrCat("hard limit ", hard_limit), ""};
  return {Level::kWarn, "open files",
          absl::StrCat("hard limit ", hard_limit, " is less than the ", wanted, " that ", kSessionsMax,
                       " sessions can need"),
          absl::StrCat("LimitNOFILE=", wanted, " in the unit, or ulimit -Hn ", wanted, " before kvartald starts")};
}

Finding CheckLockedMemory(uint64_t limit) {
  const std::string shown = limit == UINT64_MAX ? "unlimited" : HumanBytes(limit);
  return {Level::kOk, "locked memory",
          absl::StrCat(shown, "; the daemon locks its keys for NVMe and, where there is no limit, the cache"), ""};
}

Finding CheckIoUring() {
  const absl::Status probe = device::ProbeUring(-1);
  if (probe.ok()) return {Level::kOk, "io_uring", "works for this user, here", ""};
  return {Level::kWarn, "io_uring", "cannot be used: a pool of threads does the disk I/O, at more CPU for each byte",
          std::string(probe.message())};
}

Finding CheckGpu() { return {Level::kOk, "gpu", "not supported yet: the hbm tier is off, dram and nvme serve", ""}; }

Finding CheckMemory(uint64_t dram_bytes, uint64_t total_bytes, uint64_t available_bytes) {
  const std::string detail = absl::StrCat("dram.size ", HumanBytes(dram_bytes), ", the machine has ",
                                          HumanBytes(total_bytes), ", ", HumanBytes(available_bytes), " available");
  if (dram_bytes > total_bytes) return {Level::kFail, "memory", detail, "lower dram.size"};
  if (dram_bytes > total_bytes / 100 * (100 - kRoomForOthersPercent)) {
    return {Level::kWarn, "memory", detail, "lower dram.size: little is left for everything else on the node"};
  }
  if (dram_bytes > available_bytes) {
    return {Level::kWarn, "memory", detail,
            "free memory or lower dram.size: the cache may be refused memory it is configured for"};
  }
  return {Level::kOk, "memory", detail, ""};
}

Finding CheckPolicy(const config::NodeConfig& config) {
  absl::StatusOr<control::LoadedPolicy> loaded =
      control::LoadPolicyFolder(config.policy_dir, process::CapacityOf(config));
  if (!loaded.ok()) {
    const absl::string_view message = loaded.status().message();
    return {Level::kFail, "policy",
            absl::StrReplaceAll(crds::FirstFindings({message.data(), message.size()}), {{"\n", "; "}}),
            absl::StrCat("correct it and check with kvartalctl policy validate ", config.policy_dir)};
  }
  const size_t tenants = loaded->table->tenants().size();
  const std::string detail = absl::StrCat(Counted(tenants, "tenant"), " in ", config.policy_dir);
  if (tenants == 0) {
    return {Level::kWarn, "policy", absl::StrCat(detail, ": every client is refused"),
            "put a TenantKVPolicy there; crds/examples has some to begin with"};
  }
  std::vector<std::string> warnings = std::move(loaded->warnings);
  const std::vector<std::string> idle = control::SubjectsOfNobody(*loaded->table, process::IdentitiesOf(config));
  warnings.insert(warnings.end(), idle.begin(), idle.end());
  if (warnings.empty()) return {Level::kOk, "policy", detail, ""};
  return {Level::kWarn, "policy", absl::StrCat(detail, ": ", absl::StrJoin(warnings, "; ")), ""};
}

Finding CheckRunFolder(const config::NodeConfig& config) {
  const std::string& folder = config.run_dir;
  struct stat info{};
  if (::stat(folder.c_str(), &info) != 0) {
    const std::string parent = FolderOf(folder);
    if (::access(parent.c_str(), W_OK) == 0)
      return {Level::kOk, "run folder", absl::StrCat(folder, " will be made"), ""};
    return {Level::kFail, "run folder", absl::StrCat(folder, " is not there and cannot be made by this user"),
            absl::StrCat("mkdir -p ", folder, " and give it to the user of kvartald")};
  }
  if (!S_ISDIR(info.st_mode) || ::access(folder.c_str(), W_OK | X_OK) != 0) {
    return {Level::kFail, "run folder", absl::StrCat(folder, " is not a folder this user may write"),
            absl::StrCat("give ", folder, " to the user of kvartald, or set another runDir")};
  }
  if ((info.st_mode & S_IXOTH) == 0 && !config.attach_socket.empty()) {
    return {Level::kWarn, "run folder",
            absl::StrCat(folder, " lets nobody else in: pods under other uids cannot reach the socket"),
            absl::StrCat("chmod o+x ", folder)};
  }
  return {Level::kOk, "run folder", folder, ""};
}

Finding CheckDiskSpace(const config::NvmeConfig& nvme) {
  const std::string folder = FolderOf(nvme.path);
  struct statvfs space{};
  if (::statvfs(folder.c_str(), &space) != 0) {
    return {Level::kFail, "nvme space", absl::StrCat(folder, ": ", std::strerror(errno)),
            absl::StrCat("make the folder ", folder, " on the disk that is meant")};
  }
  struct stat file{};
  constexpr uint64_t kStatBlockBytes = 512;
  const uint64_t there =
      ::stat(nvme.path.c_str(), &file) == 0 ? static_cast<uint64_t>(file.st_blocks) * kStatBlockBytes : 0;
  const uint64_t missing = nvme.size_bytes > there ? nvme.size_bytes - there : 0;
  const uint64_t free_bytes = space.f_bavail * space.f_frsize;
  const std::string detail = absl::StrCat(nvme.path, ": ", HumanBytes(nvme.size_bytes), " wanted, ", HumanBytes(there),
                                          " allocated, ", HumanBytes(free_bytes), " free");
  if (missing > free_bytes)
    return {Level::kFail, "nvme space", detail, "free space on that disk or lower its nvme size"};
  return {Level::kOk, "nvme space", detail, ""};
}

Finding CheckDirectIo(const config::NvmeConfig& nvme) {
  // A file of its own: the data file may belong to a running daemon.
  std::string probe = absl::StrCat(FolderOf(nvme.path), "/.kvartal-doctor-XXXXXX");
  UniqueFd fd(::mkostemp(probe.data(), O_CLOEXEC));
  if (!fd.valid()) {
    return {Level::kFail, "nvme access", absl::StrCat(FolderOf(nvme.path), ": ", std::strerror(errno)),
            "give the folder to the user of kvartald"};
  }
  const bool sized = ::ftruncate(fd.get(), kSlotAlignBytes) == 0;
  fd.reset(::open(probe.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  ::unlink(probe.c_str());
  // Some file systems take the flag and refuse the first transfer.
  alignas(kSlotAlignBytes) std::byte page[kSlotAlignBytes];
  const bool direct =
      fd.valid() && (!sized || ::pread(fd.get(), page, sizeof(page), 0) == static_cast<ssize_t>(sizeof(page)));
  if (!direct) {
    return {
        Level::kWarn, "nvme access",
        absl::StrCat(nvme.path, ": the file system takes no O_DIRECT: the page cache holds every block a second time"),
        "put the file on ext4, xfs or a raw device"};
  }
  // io_uring itself is looked at with the machine; here it is whether this file system can be read through it.
  const bool through_ring = sized && device::ProbeUring(fd.get()).ok();
  return {Level::kOk, "nvme access",
          absl::StrCat(nvme.path, ": writable, O_DIRECT works", through_ring ? ", io_uring reads it" : ""), ""};
}

Finding CheckNvmeKeys(const std::string& key_file) {
  const auto keys = cipher::NodeKeys::Read(key_file);
  if (!keys.ok()) {
    return {Level::kFail, "nvme keys", std::string(keys.status().message()),
            "a key a line: a number and 64 hex digits (openssl rand -hex 32); chmod 0600, of the user of kvartald"};
  }
  if ((*keys)->size() == 0) {
    return {Level::kFail, "nvme keys", absl::StrCat(key_file, " has none: nothing that has to be encrypted is written"),
            absl::StrCat("echo \"1 $(openssl rand -hex 32)\" >> ", key_file)};
  }
  return {Level::kOk, "nvme keys",
          absl::StrCat((*keys)->size(), " in ", key_file, ", the newest is ", (*keys)->newest()), ""};
}

namespace {

Finding DenialsOf(const admin::v1::StatusReply& status) {
  std::vector<std::string> reasons;
  for (const auto& [reason, count] : status.attach_denials())
    reasons.push_back(absl::StrCat(HumanCount(count), " ", reason));
  std::sort(reasons.begin(), reasons.end());
  return {Level::kWarn, "attach", absl::StrCat("denied since the start: ", absl::StrJoin(reasons, ", ")),
          "the daemon's log and audit log say who; kvartalctl explain --tenant T says who may attach as T"};
}

Finding TierOf(const admin::v1::Tier& tier) {
  const std::string name = absl::StrCat("tier ", tier.name());
  const std::vector<std::string> note = absl::StrSplit(tier.note(), absl::MaxSplits(" -> ", 1));
  const std::string fix = note.size() > 1 ? note[1] : "";
  if (!tier.healthy()) return {Level::kFail, name, note[0], fix.empty() ? "see the note; the other tiers serve" : fix};
  if (!tier.note().empty()) return {Level::kWarn, name, note[0], fix};
  return {Level::kOk, name, "serves", ""};
}

Finding DiskOf(const admin::v1::Disk& disk) {
  const std::string name = absl::StrCat("disk ", disk.path());
  const std::vector<std::string> note = absl::StrSplit(disk.note(), absl::MaxSplits(" -> ", 1));
  const std::string fix = note.size() > 1 ? note[1] : "";
  const std::string detail = absl::StrCat(disk.state(), ", ", HumanBytes(disk.used_bytes()), " of ",
                                          HumanBytes(disk.capacity_bytes()), note[0].empty() ? "" : ": ", note[0]);
  const Level degraded = disk.note().empty() ? Level::kOk : Level::kWarn;
  const bool healthy = disk.state() == "healthy";
  return {healthy ? degraded : Level::kFail, name, detail,
          healthy || !fix.empty() ? fix : "see the note; the other disks serve"};
}

}  // namespace

std::vector<Finding> CheckStatus(const admin::v1::StatusReply& status) {
  std::vector<Finding> findings;
  const bool drains = status.draining();
  findings.push_back({drains ? Level::kWarn : Level::kOk, "daemon",
                      absl::StrCat("kvartald ", status.version(), ", pid ", status.pid(), ", up ",
                                   HumanDuration(status.uptime_ms()), ", ", HumanCount(status.entries()), " blocks",
                                   drains ? "; it was drained: it takes no stores" : ""),
                      drains ? "restart it" : ""});
  for (const admin::v1::Tier& tier : status.tiers()) {
    if (tier.present()) findings.push_back(TierOf(tier));
  }
  // Of one disk the tier has said it all.
  for (const admin::v1::Disk& disk : status.disks()) {
    if (status.disks_size() > 1) findings.push_back(DiskOf(disk));
  }
  if (!status.attach_denials().empty()) findings.push_back(DenialsOf(status));
  if (!status.policy_error().empty()) {
    findings.push_back({Level::kFail, "reload",
                        absl::StrCat("refused, and the last good policy goes on: ", status.policy_error()),
                        "correct the manifests: the folder is read again by itself"});
  }
  if (!status.policy_note().empty()) {
    findings.push_back({Level::kWarn, "operator", status.policy_note(),
                        "see the network between them, the operator's certificate (caFile) and this daemon's token"});
  }
  if (!status.nvme_keys_error().empty()) {
    findings.push_back({Level::kFail, "encryption",
                        absl::StrCat("the file of keys is refused: ", status.nvme_keys_error()),
                        "correct it: it is read again by itself; until then the keys from before are used"});
  } else if (status.nvme_key_id() != 0) {
    findings.push_back({Level::kOk, "encryption",
                        absl::StrCat("blocks that have to be encrypted on nvme are so under key ", status.nvme_key_id(),
                                     "; ", status.nvme_keys(), " keys to read by"),
                        ""});
  }
  if (!status.metrics_error().empty()) {
    findings.push_back({Level::kFail, "metrics", status.metrics_error(),
                        "choose a free metricsAddress, or \"\" for none, and restart the daemon"});
  }
  if (status.audit_lost() > 0) {
    findings.push_back({Level::kFail, "audit log",
                        absl::StrCat(status.audit_lost(), " events could not be written to ", status.audit_log()),
                        "see the daemon's log; make room on that disk"});
  }
  if (status.bugs() > 0) {
    findings.push_back({Level::kWarn, "bugs", absl::StrCat(status.bugs(), " broken expectations survived"),
                        "please report them, with the daemon's log"});
  }
  return findings;
}

}  // namespace kvartal::ctl
