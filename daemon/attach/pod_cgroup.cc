#include "daemon/attach/pod_cgroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "daemon/base/limits.h"
#include "daemon/base/unique_fd.h"

namespace kvartal::attach {
namespace {

constexpr std::string_view kPod = "pod";
constexpr std::string_view kSlice = ".slice";
constexpr std::string_view kPlainUid = "00000000-0000-0000-0000-000000000000";

// A UID as the API server makes them; the systemd driver writes '_' for '-', which is a separator of its own.
std::string UidOf(std::string_view text) {
  if (text.size() != kPlainUid.size()) return "";
  std::string uid(text);
  for (size_t i = 0; i < uid.size(); ++i) {
    char& c = uid[i];
    if (c == '_') c = '-';
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool fits = kPlainUid[i] == '-' ? c == '-' : std::isxdigit(static_cast<unsigned char>(c)) != 0;
    if (!fits) return "";
  }
  return uid;
}

// cgroupfs: "pod<uid>". systemd: "kubepods-pod<uid>.slice", "kubepods-burstable-pod<uid>.slice", and where the runtime
// does not know of the driver, ":cri-containerd:<container>" behind it.
std::string PodOfSegment(std::string_view segment) {
  segment = segment.substr(0, segment.find(':'));
  if (segment.starts_with(kPod)) return UidOf(segment.substr(kPod.size()));
  if (!segment.ends_with(kSlice)) return "";
  segment.remove_suffix(kSlice.size());
  const size_t at = segment.rfind("-pod");
  return at == std::string_view::npos ? "" : UidOf(segment.substr(at + 1 + kPod.size()));
}

std::string_view NextPart(std::string_view* rest, char end) {
  const std::string_view part = rest->substr(0, rest->find(end));
  rest->remove_prefix(std::min(rest->size(), part.size() + 1));
  return part;
}

}  // namespace

std::optional<std::string> PodOfCgroup(std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::string pod;
  while (!text.empty()) {
    std::string_view path = NextPart(&text, '\n');
    // "<hierarchy>:<controllers>:<path>"; a path may have colons of its own.
    NextPart(&path, ':');
    NextPart(&path, ':');
    while (!path.empty()) {
      const std::string found = PodOfSegment(NextPart(&path, '/'));
      if (found.empty() || found == pod) continue;
      if (!pod.empty()) return std::nullopt;
      pod = found;
    }
  }
  return pod;
}

std::string ReadCgroup(uint32_t pid) {
  const UniqueFd file(::open(absl::StrCat("/proc/", pid, "/cgroup").c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(kCgroupTextMax, '\0');
  size_t filled = 0;
  while (file.valid() && filled < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (got == 0) {
      text.resize(filled);
      return text;
    }
    if (got < 0) break;
    filled += static_cast<size_t>(got);
  }
  return "";
}

}  // namespace kvartal::attach
