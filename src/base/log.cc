#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <memory>
#include <utility>

#include "base/strings.h"

namespace perigee {
namespace {

constexpr std::array<std::pair<std::string_view, LogLevel>, 5> kLevels = {{{"debug", LogLevel::kDebug},
                                                                           {"info", LogLevel::kInfo},
                                                                           {"warning", LogLevel::kWarning},
                                                                           {"error", LogLevel::kError},
                                                                           {"off", LogLevel::kOff}}};

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
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made =
        std::make_shared<spdlog::logger>("perigee", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *logger;
}

}  // namespace

StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  for (const auto& [known, level] : kLevels) {
    if (known == name) return level;
  }
  return InvalidArgument(
      StrCat("unknown log level ", Quoted(name), "; accepted: debug, info, warning, error, off"));
}

void SetLogLevel(LogLevel level) {
  Logger().set_level(ToSpdlog(level));
}

void Log(LogLevel level, std::string_view message) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace perigee
