#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace perigee {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off".
StatusOr<LogLevel> ParseLogLevel(std::string_view name);
void SetLogLevel(LogLevel level);

// One line to standard error with time and level. Safe from any thread.
void Log(LogLevel level, std::string_view message);
inline void LogDebug(std::string_view m) {
  Log(LogLevel::kDebug, m);
}
inline void LogInfo(std::string_view m) {
  Log(LogLevel::kInfo, m);
}
inline void LogWarning(std::string_view m) {
  Log(LogLevel::kWarning, m);
}
inline void LogError(std::string_view m) {
  Log(LogLevel::kError, m);
}

}  // namespace perigee
