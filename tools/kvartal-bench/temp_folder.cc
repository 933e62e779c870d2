#include "tools/kvartal-bench/temp_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvartal::bench {
namespace {

void RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TempFolder>> TempFolder::Make(const std::string& parent) {
  const char* const from_environment = std::getenv("TMPDIR");
  std::string path = !parent.empty() ? parent : from_environment != nullptr ? from_environment : "/tmp";
  absl::StrAppend(&path, "/kvartal-XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return absl::InternalError(
        absl::StrCat("cannot make a folder ", path, ": ", std::strerror(errno), ": name a writable place with --dir"));
  }
  if (::chmod(path.c_str(), 0755) != 0) {
    return absl::InternalError(absl::StrCat("chmod 0755 ", path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<TempFolder>(new TempFolder(std::move(path)));
}

TempFolder::TempFolder(std::string path) : path_(std::move(path)), undo_([path = path_] { RemoveAll(path); }) {}

TempFolder::~TempFolder() { RemoveAll(path_); }

}  // namespace kvartal::bench
