#include "base/strings.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {
namespace {

TEST(Strings, StrCat) {
  EXPECT_EQ(StrCat(), "");
  EXPECT_EQ(StrCat("a", 'b', std::string("c"), std::string_view("d")), "abcd");
  EXPECT_EQ(StrCat(-7, " ", uint64_t{18446744073709551615u}, " ", true, false),
            "-7 18446744073709551615 truefalse");
  EXPECT_EQ(StrCat(0.1, " ", 1.5f, " ", 1e-6, " ", 3.0), "0.1 1.5 1e-06 3");
  EXPECT_EQ(StrCat(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Strings, JoinAndShape) {
  EXPECT_EQ(StrJoin({}, ", "), "");
  const std::vector<std::string> parts = {"a", "", "c"};
  EXPECT_EQ(StrJoin(parts, ", "), "a, , c");
  EXPECT_EQ(ShapeString({}), "[]");
  EXPECT_EQ(ShapeString(std::vector<int64_t>{7}), "[7]");
  EXPECT_EQ(ShapeString(std::vector<int64_t>{2, -3, 4}), "[2, -3, 4]");
}

TEST(Strings, Numbers) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(49122681728), "49,122,681,728");
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 19), "1.50 MiB");
  EXPECT_EQ(HumanBytes(uint64_t{5} << 50), "5120.00 TiB");
}

TEST(Strings, QuotedKeepsALineALine) {
  EXPECT_EQ(Quoted("plain"), "\"plain\"");
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(Quoted(std::string_view("\n\0\x7f", 3)), R"("\x0a\x00\x7f")");
  EXPECT_EQ(Quoted("\x1b[31m"), R"("\x1b[31m")");
  for (const char c : Quoted("\xff\xfe\xc3")) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  EXPECT_EQ(Quoted("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(Quoted("abc", 3), "\"abc\"");
}

TEST(Strings, PositionsOfAText) {
  EXPECT_EQ(TextPosition("", 0), "line 1, column 1");
  EXPECT_EQ(TextPosition("", 1), "line 1, column 1");
  EXPECT_EQ(TextPosition("abc", 3), "line 1, column 3");
  EXPECT_EQ(TextPosition("abc", 99), "line 1, column 4");
  EXPECT_EQ(TextPosition("a\n\nbc", 3), "line 2, column 1");
  EXPECT_EQ(TextPosition("a\n\nbc", 5), "line 3, column 2");
  EXPECT_EQ(TextPosition("a\n\nbc", 6), "line 3, column 3");
}

}  // namespace
}  // namespace perigee
