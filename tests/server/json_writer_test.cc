#include "server/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/api_error.h"
#include "server/api_fixture.h"
#include "server/json_limits.h"

namespace perigee::server {
namespace {

TEST(JsonWriter, NestedValuesAndCommas) {
  JsonWriter w;
  w.BeginObject().Field("a", 1).Key("b").BeginArray().Value(true).Value(nullptr).BeginObject().EndObject();
  w.EndArray().Field("c", "x").Field("d", std::optional<int64_t>()).EndObject();
  EXPECT_EQ(w.Take(), R"({"a":1,"b":[true,null,{}],"c":"x","d":null})");
  w.BeginArray().EndArray();
  EXPECT_EQ(w.Take(), "[]");
}

TEST(JsonWriter, EveryByteStringBecomesAReadableString) {
  std::string text;
  for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
  text += "é😀";
  JsonWriter w;
  w.Value(text);
  EXPECT_EQ(Json::parse(w.Take()).get<std::string>(), text);
  for (int c = 128; c < 256; ++c) {
    w.Value(std::string("a") + static_cast<char>(c));
    EXPECT_EQ(Json::parse(w.Take()).get<std::string>(), "a\xEF\xBF\xBD");
  }
}

TEST(JsonWriter, NumbersAreAlwaysFinite) {
  for (double v : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                   std::numeric_limits<double>::quiet_NaN(), 1e-320, -0.0, 1e300}) {
    JsonWriter w;
    w.Value(v).Take();
    w.BeginArray().Value(v).Value(static_cast<float>(v)).EndArray();
    Json parsed = Json::parse(w.Take());
    EXPECT_TRUE(std::isfinite(parsed[0].get<double>()));
    EXPECT_TRUE(std::isfinite(parsed[1].get<double>()));
  }
}

TEST(JsonWriter, LogprobsHaveAFloorAndACeiling) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FiniteLogprob(-kInf), -9999.0f);
  EXPECT_EQ(FiniteLogprob(std::numeric_limits<float>::quiet_NaN()), -9999.0f);
  EXPECT_EQ(FiniteLogprob(-1e30f), -9999.0f);
  EXPECT_EQ(FiniteLogprob(kInf), 0.0f);
  EXPECT_EQ(FiniteLogprob(-1.5f), -1.5f);
}

TEST(ApiError, StatusCodesBecomeHttpStatuses) {
  EXPECT_EQ(FromStatus(InvalidArgument("x")).status, 400);
  EXPECT_EQ(FromStatus(NotFound("x")).status, 404);
  EXPECT_EQ(FromStatus(ResourceExhausted("x")).status, 503);
  EXPECT_EQ(FromStatus(Unavailable("x")).status, 503);
  EXPECT_EQ(FromStatus(InternalError("x")).status, 500);
  Json body = Json::parse(ErrorBody({.status = 500, .message = "m"}));
  EXPECT_EQ(
      body,
      (Json{{"error", {{"message", "m"}, {"type", "server_error"}, {"param", nullptr}, {"code", nullptr}}}}));
}

TEST(JsonLimits, DepthMembersAndValues) {
  JsonLimits limits{.max_depth = 3, .max_members = 2, .max_values = 6};
  EXPECT_EQ(ExceededJsonLimit("[[[1]]]", limits), "");
  EXPECT_NE(ExceededJsonLimit("[[[[1]]]]", limits), "");
  EXPECT_EQ(ExceededJsonLimit(R"({"a":1,"b":{"c":1,"d":2}})", limits), "");
  EXPECT_NE(ExceededJsonLimit(R"({"a":1,"b":2,"c":3})", limits), "");
  EXPECT_EQ(ExceededJsonLimit("[1,2,3,4,5,6]", limits), "");
  EXPECT_NE(ExceededJsonLimit("[1,2,3,4,5,6,7]", limits), "");
  // Brackets inside strings do not count, escaped quotes do not end them.
  EXPECT_EQ(ExceededJsonLimit(R"(["[[[[[[[[\"[[[[:,:,:,:,:,:,"])", limits), "");
  EXPECT_EQ(ExceededJsonLimit("]]]]}}}}\"\\", limits), "");
}

}  // namespace
}  // namespace perigee::server
