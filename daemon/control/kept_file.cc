#include "daemon/control/kept_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::control {
namespace {

absl::Status WriteAll(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return absl::ErrnoToStatus(errno, "write");
    done += static_cast<size_t>(wrote);
  }
  return ::fsync(fd) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, "fsync");
}

}  // namespace

absl::Status KeptFile::Write(const std::string& bytes) const {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const std::string beside = path_ + ".new";
  const UniqueFd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", beside));
  KV_RETURN_IF_ERROR(WriteAll(file.get(), bytes));
  if (std::rename(beside.c_str(), path_.c_str()) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("renaming ", beside));
  const UniqueFd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::fsync(folder.get()) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("syncing ", folder_));
  return absl::OkStatus();
}

absl::StatusOr<std::string> KeptFile::Read() const {
  std::ifstream file(path_, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("nothing is kept in ", path_));
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kvartal::control
