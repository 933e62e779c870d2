#include "operator/kube/line_framer.h"

#include "operator/kube/limits.h"

namespace kvartal::kube {

bool LineFramer::Feed(std::string_view bytes, absl::FunctionRef<bool(std::string_view)> on_line) {
  while (true) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (held_.size() + part.size() > kWatchLineBytesMax) return false;
    if (end == std::string_view::npos) {
      held_.append(part);
      return true;
    }
    bytes.remove_prefix(end + 1);
    std::string joined;
    std::string_view line = part;
    if (!held_.empty()) {
      joined.swap(held_);
      joined.append(part);
      line = joined;
    }
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !on_line(line)) return true;
  }
}

}  // namespace kvartal::kube
