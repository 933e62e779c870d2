#include "daemon/device/block_file_setup.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/log.h"

namespace kvartal::device {
namespace {

constexpr mode_t kFileMode = 0600;  // tenants' bytes
constexpr int kOpenTriesMax = 3;    // a file that appears or disappears between two calls

struct Candidate {
  UniqueFd fd;
  bool created = false;
};

absl::Status OpenError(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(
          absl::StrCat("the folder of ", path, " is missing: create it or set another nvme.path"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(absl::StrCat(
          "no permission to read and write ", path, ": give its folder to the daemon's user or set another nvme.path"));
    case EISDIR:
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is a folder: nvme.path must name a file or a block device"));
    case EBUSY:
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is a block device that is mounted or in use: unmount it or set another nvme.path"));
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("opening ", path));
  }
}

absl::StatusOr<Candidate> FindOrCreate(const std::string& path) {
  int error = 0;
  for (int i = 0; i < kOpenTriesMax; ++i) {
    struct stat info{};
    const bool is_device = ::stat(path.c_str(), &info) == 0 && S_ISBLK(info.st_mode);
    // O_EXCL on a block device: the kernel refuses one that is mounted.
    Candidate found{UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC | (is_device ? O_EXCL : 0))), false};
    if (found.fd.valid()) return found;
    error = errno;
    if (error != ENOENT) break;
    Candidate made{UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode)), true};
    if (made.fd.valid()) return made;
    error = errno;
    if (error != EEXIST) break;
  }
  return OpenError(path, error);
}

absl::Status Lock(const UniqueFd& fd, const std::string& path) {
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is in use by another kvartald: stop it or set another nvme.path"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("locking ", path));
}

uint64_t FreeBytes(const UniqueFd& fd) {
  struct statvfs disk{};
  if (::fstatvfs(fd.get(), &disk) != 0) return 0;
  return static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
}

// 0 or an errno.
int Allocate(const UniqueFd& fd, uint64_t bytes) {
  int result;
  do {
    result = ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  if (errno != EOPNOTSUPP) return errno;
  return ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
}

// Before it is made larger: what is somebody else's is not touched.
absl::Status JudgeFront(const Candidate& file, const BlockFileOptions& options) {
  std::vector<std::byte> front(kNvmeForeignProbeBytes);
  for (size_t read = 0; read < front.size();) {
    const ssize_t got = ::pread(file.fd.get(), front.data() + read, front.size() - read, static_cast<off_t>(read));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("reading ", options.path));
    if (got == 0) break;
    read += static_cast<size_t>(got);
  }
  absl::Status judged = options.judge(front);
  if (judged.ok()) return judged;
  return absl::InvalidArgumentError(absl::StrCat(options.path, ": ", judged.message()));
}

absl::StatusOr<uint64_t> SizeRegularFile(const Candidate& file, const struct stat& info,
                                         const BlockFileOptions& options) {
  const uint64_t wanted = options.size_bytes;
  const auto existing = static_cast<uint64_t>(info.st_size);
  const uint64_t held = static_cast<uint64_t>(info.st_blocks) * 512;
  const bool grows = !file.created && existing > 0 && existing < wanted;
  if (grows && options.judge) KV_RETURN_IF_ERROR(JudgeFront(file, options));
  const uint64_t free = FreeBytes(file.fd);
  // Asked before it is tried: a disk that runs full on the way hurts everyone on it.
  const bool too_large = wanted > held && free > 0 && wanted - held > free;
  const int error = too_large ? ENOSPC : Allocate(file.fd, wanted);
  if (error == 0) {
    if (existing > wanted) {
      Log(LogLevel::kWarning, "device", options.path, " has ", existing, " bytes and only the first ", wanted,
          " are used: the file is never made smaller; delete it to give the rest back");
    }
    if (grows) {
      Log(LogLevel::kWarning, "device", options.path, " had ", existing, " bytes and was made larger, to ", wanted,
          ": what it holds is kept; had it been cut, what lay beyond the cut would be lost");
    }
    return wanted;
  }
  if (!file.created && ::ftruncate(file.fd.get(), info.st_size) != 0) {
    Log(LogLevel::kWarning, "device", options.path, " could not be cut back to its ", existing, " bytes");
  }
  const char* const left = file.created ? "the file was removed again" : "the file was left as it was";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(options.path, " cannot have ", wanted, " bytes: it holds ", held,
                                                     " and ", free, " more are free",
                                                     error == EFBIG    ? " (a file size limit is in the way)"
                                                     : error == EDQUOT ? " (a quota is in the way)"
                                                                       : "",
                                                     "; ", left, ": lower the NVMe capacity or set another nvme.path"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("preallocating ", wanted, " bytes of ", options.path, "; ", left));
}

absl::StatusOr<uint64_t> SizeDevice(const UniqueFd& fd, const BlockFileOptions& options) {
  uint64_t bytes = 0;
  if (::ioctl(fd.get(), BLKGETSIZE64, &bytes) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("asking for the size of ", options.path));
  }
  if (options.size_bytes > bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the device ", options.path, " has ", bytes, " bytes and ",
                                                   options.size_bytes, " are configured: lower the NVMe capacity"));
  }
  return options.size_bytes;
}

// Some file systems take the flag and refuse the first read, so a read decides.
void TryDirect(const UniqueFd& fd, const std::string& path) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  int error = 0;
  if (::fcntl(fd.get(), F_SETFL, flags | O_DIRECT) != 0) {
    error = errno;
  } else {
    alignas(kSlotAlignBytes) std::byte probe[kSlotAlignBytes];
    if (::pread(fd.get(), probe, sizeof(probe), 0) == static_cast<ssize_t>(sizeof(probe))) return;
    error = errno;
    ::fcntl(fd.get(), F_SETFL, flags);
  }
  Log(LogLevel::kWarning, "device", path, " takes no O_DIRECT (", absl::ErrnoToStatus(error, "probe").ToString(),
      "): transfers go through the page cache, which is slower and takes memory beside the cache");
}

absl::StatusOr<uint64_t> CheckAndSize(const Candidate& file, const BlockFileOptions& options) {
  KV_RETURN_IF_ERROR(Lock(file.fd, options.path));
  struct stat info{};
  if (::fstat(file.fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("stat of ", options.path));
  if (S_ISBLK(info.st_mode)) return SizeDevice(file.fd, options);
  if (S_ISREG(info.st_mode)) return SizeRegularFile(file, info, options);
  return absl::InvalidArgumentError(
      absl::StrCat(options.path, " is neither a file nor a block device: set another nvme.path"));
}

absl::StatusOr<DiskFile> SetUpOnce(const BlockFileOptions& options) {
  if (options.size_bytes == 0 || options.size_bytes % kSlotAlignBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the size of ", options.path, " is ", options.size_bytes,
                                                   " bytes; it must be a multiple of ", kSlotAlignBytes, " and not 0"));
  }
  KV_ASSIGN_OR_RETURN(Candidate file, FindOrCreate(options.path));
  absl::StatusOr<uint64_t> size = CheckAndSize(file, options);
  if (!size.ok()) {
    // FailedPrecondition: another daemon found our new file and holds it now; it is theirs.
    if (file.created && !absl::IsFailedPrecondition(size.status())) ::unlink(options.path.c_str());
    return size.status();
  }
  TryDirect(file.fd, options.path);
  return DiskFile(std::move(file.fd), options.path, *size);
}

}  // namespace

void PauseBetweenDiskOpens() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

absl::StatusOr<DiskFile> SetUpBlockFile(const BlockFileOptions& options, absl::FunctionRef<void()> pause) {
  for (int tries = 1;; ++tries) {
    absl::StatusOr<DiskFile> file = SetUpOnce(options);
    if (!absl::IsFailedPrecondition(file.status()) || tries == kDiskOpenTries) return file;
    if (tries == 1) Log(LogLevel::kInfo, "device", options.path, " is in use: waiting for a moment to see it let go");
    pause();
  }
}

}  // namespace kvartal::device
