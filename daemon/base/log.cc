#include "daemon/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace kvartal {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("kvartal", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

bool SetLogLevel(std::string_view name) {
  if (name == "debug")
    Logger().set_level(spdlog::level::debug);
  else if (name == "info")
    Logger().set_level(spdlog::level::info);
  else if (name == "warning")
    Logger().set_level(spdlog::level::warn);
  else if (name == "error")
    Logger().set_level(spdlog::level::err);
  else if (name == "off")
    Logger().set_level(spdlog::level::off);
  else
    return false;
  return true;
}

void LogLine(LogLevel level, std::string_view component, std::string_view text) {
  Logger().log(ToSpdlog(level), "{} {}", component, text);
}

}  // namespace kvartal
