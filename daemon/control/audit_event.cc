#include "daemon/control/audit_event.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace kvartal::control {

AuditEvent AuditEvent::With(std::string_view key, std::string_view value) && {
  fields_.emplace_back(key, std::string(value));
  return std::move(*this);
}

AuditEvent AuditEvent::With(std::string_view key, uint64_t value) && {
  fields_.emplace_back(key, value);
  return std::move(*this);
}

std::string AuditEvent::Line(int64_t wall_ms, uint64_t serial) const {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(wall_ms), absl::UTCTimeZone());
  line["serial"] = serial;
  line["event"] = name_;
  for (const auto& [key, value] : fields_) {
    std::visit([&, &name = key](const auto& of) { line[name] = of; }, value);
  }
  // A client's bytes that are no text are shown as such rather than refused.
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace kvartal::control
