#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace perigee {
namespace {

TEST(Status, CarriesCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status::Ok().ok());
  EXPECT_EQ(Status::Ok().message(), "");
  const std::pair<Status, StatusCode> kinds[] = {{InvalidArgument("m"), StatusCode::kInvalidArgument},
                                                 {NotFound("m"), StatusCode::kNotFound},
                                                 {ResourceExhausted("m"), StatusCode::kResourceExhausted},
                                                 {Unavailable("m"), StatusCode::kUnavailable},
                                                 {Cancelled("m"), StatusCode::kCancelled},
                                                 {InternalError("m"), StatusCode::kInternal}};
  for (const auto& [status, code] : kinds) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "m");
  }
}

StatusOr<std::unique_ptr<int>> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("odd");
  return std::make_unique<int>(n / 2);
}

StatusOr<int> Quarter(int n) {
  PERIGEE_ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(n));
  PERIGEE_ASSIGN_OR_RETURN(const std::unique_ptr<int> quarter, Half(*half));
  return *quarter;
}

Status IsMultipleOfFour(int n, bool& reached_end) {
  PERIGEE_RETURN_IF_ERROR(Quarter(n).status());
  reached_end = true;
  return Status::Ok();
}

TEST(StatusOr, ValueOrReason) {
  StatusOr<std::unique_ptr<int>> half = Half(8);
  ASSERT_TRUE(half.ok());
  EXPECT_TRUE(half.status().ok());
  EXPECT_EQ(**half, 4);
  const std::unique_ptr<int> moved = std::move(half).value();
  EXPECT_EQ(*moved, 4);
  EXPECT_EQ(Half(3).status().message(), "odd");
  const StatusOr<std::string> text = std::string("abc");
  EXPECT_EQ(text->size(), 3u);
}

TEST(StatusOr, MacrosLeaveOnTheFirstFailure) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_EQ(Quarter(5).status().code(), StatusCode::kInvalidArgument);
  bool reached_end = false;
  EXPECT_EQ(IsMultipleOfFour(6, reached_end).message(), "odd");
  EXPECT_FALSE(reached_end);
  EXPECT_TRUE(IsMultipleOfFour(4, reached_end).ok());
  EXPECT_TRUE(reached_end);
}

TEST(StatusDeathTest, BrokenInvariants) {
  EXPECT_DEATH(Status(StatusCode::kOk, "no failure"), "code");
  EXPECT_DEATH((void)StatusOr<int>(Status::Ok()), "ok");
  const StatusOr<int> failed = NotFound("no such tensor");
  EXPECT_DEATH((void)failed.value(), "no such tensor");
}

}  // namespace
}  // namespace perigee
