#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace perigee {
namespace {

TEST(Log, LevelNames) {
  EXPECT_EQ(*ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(*ParseLogLevel("info"), LogLevel::kInfo);
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(*ParseLogLevel("error"), LogLevel::kError);
  EXPECT_EQ(*ParseLogLevel("off"), LogLevel::kOff);
  for (const char* name : {"", "INFO", "warn", "info "}) {
    const StatusOr<LogLevel> level = ParseLogLevel(name);
    ASSERT_FALSE(level.ok()) << name;
    EXPECT_EQ(level.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(level.status().message().find("accepted: debug, info, warning, error, off"), std::string::npos);
  }
}

std::string Logged(LogLevel threshold, LogLevel level, const std::string& message) {
  testing::internal::CaptureStderr();
  SetLogLevel(threshold);
  Log(level, message);
  SetLogLevel(LogLevel::kInfo);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, OneLineAtOrAboveTheLevel) {
  const std::string line = Logged(LogLevel::kInfo, LogLevel::kWarning, "a {} b %s");
  EXPECT_NE(line.find("warning"), std::string::npos);
  EXPECT_NE(line.find("a {} b %s\n"), std::string::npos);  // a message is no format string
  EXPECT_EQ(Logged(LogLevel::kWarning, LogLevel::kInfo, "quiet"), "");
  EXPECT_EQ(Logged(LogLevel::kOff, LogLevel::kError, "quiet"), "");
  EXPECT_NE(Logged(LogLevel::kDebug, LogLevel::kDebug, "loud").find("loud"), std::string::npos);
}

}  // namespace
}  // namespace perigee
