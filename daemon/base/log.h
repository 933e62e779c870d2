// Log lines on stderr: Log(LogLevel::kInfo, "attach", "tenant ", name, " ...") is one line with time, level and
// component. Any thread. The library behind it is included in log.cc alone.
#pragma once

#include <string_view>

#include "absl/strings/str_cat.h"

namespace kvartal {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. Accepts debug, info, warning, error, off; false for anything else.
bool SetLogLevel(std::string_view name);
void LogLine(LogLevel level, std::string_view component, std::string_view text);

template <typename... Args>
void Log(LogLevel level, std::string_view component, const Args&... args) {
  LogLine(level, component, absl::StrCat(args...));
}

}  // namespace kvartal
