#include "daemon/control/policy_folder.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace kvartal::control {

std::string PolicyFolder::State() const {
  const absl::StatusOr<std::vector<std::string>> paths = ManifestsIn(folder_);
  if (!paths.ok()) return std::string(paths.status().message());
  std::string state;
  for (const std::string& path : *paths) {
    struct stat info{};
    absl::StrAppend(&state, path, "\n");
    if (::stat(path.c_str(), &info) != 0) continue;
    absl::StrAppend(&state, info.st_dev, " ", info.st_ino, " ", info.st_mode, " ", info.st_size, " ",
                    info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, " ", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec,
                    "\n");
  }
  return state;
}

absl::StatusOr<LoadedPolicy> PolicyFolder::Read() {
  read_state_ = State();
  seen_state_ = read_state_;
  return LoadPolicyFolder(folder_, capacity_);
}

std::optional<absl::StatusOr<LoadedPolicy>> PolicyFolder::ReadIfChanged() {
  std::string state = State();
  const bool at_rest = state == seen_state_;
  seen_state_ = std::move(state);
  if (!at_rest || seen_state_ == read_state_) return std::nullopt;
  return Read();
}

}  // namespace kvartal::control
