#include "text/json_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee::text {
namespace {

std::string Format(std::string_view json, JsonStyle style = {}) {
  const auto text = FormatJson(json, style, "x");
  return text.ok() ? *text : text.status().message();
}

// Right sides are what Python's json.dumps(json.loads(...), ensure_ascii=False) prints.
TEST(FormatJson, PrintsAsPythonDoes) {
  const std::pair<const char*, const char*> cases[] = {
      {"null", "null"},
      {" true ", "true"},
      {"[ ]", "[]"},
      {"{ }", "{}"},
      {"[1,2 , 3]", "[1, 2, 3]"},
      {R"({"b":1,"a":[{}]})", R"({"b": 1, "a": [{}]})"},
      {R"({"a":1,"b":2,"a":3})", R"({"a": 3, "b": 2})"},
      {R"("\u00e9\/\u2028\ud83d\ude42\u007f")", "\"é/\u2028🙂\x7f\""},
      {R"("\"\\\b\f\n\r\t\u0000\u001f")", R"("\"\\\b\f\n\r\t\u0000\u001f")"},
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"123456789012345678901234567890123456789", "123456789012345678901234567890123456789"},
      {"1.0", "1.0"},
      {"1e0", "1.0"},
      {"1.50", "1.5"},
      {"0.1", "0.1"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.5E-7", "1.5e-07"},
      {"1e100", "1e+100"},
      {"1e-300", "1e-300"},
      {"5e-324", "5e-324"},
      {"1e-400", "0.0"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
  };
  for (const auto& [json, expected] : cases) EXPECT_EQ(Format(json), expected) << json;
}

TEST(FormatJson, SortsByCodePointAtEveryLevel) {
  EXPECT_EQ(Format(R"({"b":{"y":1,"x":[{"q":1,"p":2}]},"B":0,"a":1,"é":1,"":2,"ab":1,"\ue000":1,"🙂":1})",
                   {.sort_keys = true, .compact = true}),
            "{\"\":2,\"B\":0,\"a\":1,\"ab\":1,\"b\":{\"x\":[{\"p\":2,\"q\":1}],\"y\":1},\"é\":1,\"\uE000\":1,"
            "\"🙂\":1}");
}

TEST(FormatJson, RefusesWhatIsNotJson) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "x: not valid JSON at byte 1"},
      {"NaN", "x: not valid JSON at byte 1"},
      {"[Infinity]", "x: not valid JSON at byte 2"},
      {"[1,]", "x: not valid JSON at byte 4"},
      {"{\"a\":1,}", "x: not valid JSON at byte 8"},
      {"01", "x: not valid JSON at byte 2"},
      {"1 2", "x: not valid JSON at byte 3"},
      {"'a'", "x: not valid JSON at byte 1"},
      {"\"\\ud800\"", "x: not valid JSON at byte 8"},
      {"\"\xFF\"", "x: not valid JSON at byte 2"},
      {"\"a\nb\"", "x: not valid JSON at byte 3"},
      {"[1e999]", "x: a number beyond the range of a double ends at byte 6"},
  };
  for (const auto& [json, message] : cases) EXPECT_EQ(Format(json), message) << json;
}

TEST(FormatJson, DepthIsLimited) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(Format(nested(128)), nested(128));
  EXPECT_EQ(Format(nested(129)), "x: nested deeper than 128 levels");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(Format(objects), "x: nested deeper than 128 levels");
}

}  // namespace
}  // namespace perigee::text
