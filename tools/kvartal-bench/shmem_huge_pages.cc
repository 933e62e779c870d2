#include "tools/kvartal-bench/shmem_huge_pages.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvartal::bench {
namespace {

constexpr const char* kSettingPath = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

bool Write(const std::string& value) {
  std::ofstream out(kSettingPath);
  out << value;
  out.close();
  return static_cast<bool>(out);
}

}  // namespace

std::string ChosenOf(const std::string& line) {
  const size_t open = line.find('[');
  const size_t close = line.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return "";
  return line.substr(open + 1, close - open - 1);
}

absl::StatusOr<std::unique_ptr<ShmemHugePages>> ShmemHugePages::Set(const std::string& value) {
  std::ifstream in(kSettingPath);
  std::string line;
  std::getline(in, line);
  const std::string before = ChosenOf(line);
  if (before.empty()) return absl::NotFoundError(absl::StrCat(kSettingPath, ": cannot be read: no huge pages here"));
  std::unique_ptr<ShmemHugePages> setting(new ShmemHugePages(before));
  if (!Write(value))
    return absl::PermissionDeniedError(absl::StrCat(kSettingPath, ": ", std::strerror(errno), ": needs root"));
  return setting;
}

ShmemHugePages::ShmemHugePages(const std::string& before) : before_(before), undo_([before] { Write(before); }) {}

ShmemHugePages::~ShmemHugePages() { Write(before_); }

}  // namespace kvartal::bench
