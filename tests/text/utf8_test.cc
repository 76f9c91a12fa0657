#include <gtest/gtest.h>

#include <random>

#include "text/text_testing.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace perigee::text {
namespace {

TEST(Utf8, EveryCodePointDecodesToItself) {
  for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
    const std::string bytes = testing::EncodeUtf8(code);
    const Utf8Step step = DecodeUtf8(bytes);
    if (code >= 0xD800 && code <= 0xDFFF) {
      ASSERT_FALSE(IsValidUtf8(bytes)) << code;
      continue;
    }
    ASSERT_EQ(step.kind, Utf8Step::Kind::kChar) << code;
    ASSERT_EQ(step.code, code);
    ASSERT_EQ(step.size, bytes.size());
    ASSERT_TRUE(IsValidUtf8(bytes));
    for (size_t n = 1; n < bytes.size(); ++n) {
      ASSERT_EQ(DecodeUtf8(bytes.substr(0, n)).kind, Utf8Step::Kind::kIncomplete) << code;
      ASSERT_FALSE(IsValidUtf8(bytes.substr(0, n)));
    }
  }
}

// Right sides are what Python's bytes.decode(errors="replace") gives, with ? for U+FFFD.
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"abc", "abc"},
      {"\xFF\xFE", "??"},
      {"\x80\xBF", "??"},
      {"\xC0\x80", "??"},
      {"\xC3", "?"},
      {"\xC3(", "?("},
      {"\xE4\xBD", "?"},
      {"\xE4\xBD!", "?!"},
      {"\xE4\xBD\xE4\xBD\xA0", "?\xE4\xBD\xA0"},
      {"\xE0\x80\x80", "???"},
      {"\xED\xA0\x80", "???"},
      {"\xF0\x9F\x98", "?"},
      {"\xF0\x9F\x98x", "?x"},
      {"\xF0\x80\x80\x80", "????"},
      {"\xF4\x90\x80\x80", "????"},
      {"\xF5\x80", "??"},
      {"\xF0\x9F\xC3\xA9", "?\xC3\xA9"},
      {std::string("\0\xFF", 2), std::string("\0?", 2)},
  };
  for (const auto& [bytes, expected] : cases) {
    std::string shown = ReplaceInvalidUtf8(bytes);
    for (size_t at; (at = shown.find(kReplacementCharacter)) != std::string::npos;)
      shown.replace(at, kReplacementCharacter.size(), "?");
    EXPECT_EQ(shown, expected);
    EXPECT_EQ(IsValidUtf8(bytes), expected == bytes);
  }
}

TEST(Utf8Property, ReplacingGivesValidTextAndKeepsValidText) {
  std::mt19937 rng(11);
  for (int i = 0; i < 5000; ++i) {
    const std::string bytes = testing::RandomBytes(rng, 20);
    const std::string replaced = ReplaceInvalidUtf8(bytes);
    ASSERT_TRUE(IsValidUtf8(replaced));
    ASSERT_EQ(IsValidUtf8(bytes), replaced == bytes);
    ASSERT_EQ(ReplaceInvalidUtf8(replaced), replaced);
  }
}

}  // namespace
}  // namespace perigee::text
