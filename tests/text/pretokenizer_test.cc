#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "text/text_testing.h"
#include "text/tokenizer.h"
#include "text/unicode_tables.h"

namespace perigee::text {
namespace {

using Pieces = std::vector<std::string>;

Pieces Split(std::string_view text) {
  std::vector<std::string_view> views;
  SplitPieces(text, views);
  return Pieces(views.begin(), views.end());
}

struct Case {
  std::string text;
  Pieces pieces;
};

// Pieces that the pattern itself gives.
const Case kCases[] = {
    {"“Hello,” 世界世世世界世界——I'm ChatGPT. CAN'T wait 'til 2026.世界世界",
     {"“Hello", ",”", " ", "世界世世世界世界", "——", "I'm", " Chat", "GPT", ".", " CAN'T", " wait", " '",
      "til", " ", "202", "6", ".", "世界世界"}},
    {"iPhone HTMLParser camelCaseName XMLHttpRequest2",
     {"i", "Phone", " HTMLParser", " camel", "Case", "Name", " XMLHttp", "Request", "2"}},
    {"1234567 3.14159 ²½Ⅷ", {"123", "456", "7", " ", "3", ".", "141", "59", " ", "²½Ⅷ"}},
    {"a  b\n\n   c \n", {"a", " ", " b", "\n\n", "  ", " c", " \n"}},
    {"x = foo(bar)[0];\n\treturn 1", {"x", " =", " foo", "(bar", ")[", "0", "];\n", "\treturn", " ", "1"}},
    {"_under_score __init__", {"_under", "_score", " __", "init", "__"}},
    {"日本語のテスト、漢字かな混じり文。",
     {"日本語", "のテスト", "、", "漢字", "かな", "混", "じり", "文", "。"}},
    {"don’t", {"don", "’t"}},
    {"。\n\n　　話說天下", {"。\n\n", "　", "　", "話說天下"}},
    {"々〆〇", {"々", "〆", "〇"}},
    {"", {}},
    {"   ", {"   "}},
    {" \n  \r\n  ", {" \n  \r\n", "  "}},
    {" .\r\n\nx", {" .\r\n\n", "x"}},
    {"you'RE I'Ve he'ſ it'x", {"you'RE", " I'Ve", " he'ſ", " it", "'x"}},
    {"'s", {"'s"}},
    {"12's", {"12", "'s"}},
    // A combining mark may lead a word, end it, or stand alone.
    {"\u0301a é\u0301 1\u0301", {"\u0301a", " é\u0301", " ", "1", "\u0301"}},
    // Upper-like characters are given back until a lower-like one can follow.
    {"AʰB A\u0301BC", {"Aʰ", "B", " A\u0301", "BC"}},
    {"ABCdef ABC", {"ABCdef", " ABC"}},
    {"Ωmega ǅungla ʰa", {"Ωmega", " ǅungla", " ʰa"}},
    {"👩‍💻 ok", {"👩‍💻", " ok"}},
    // A Han number goes with digits, a Han letter does not.
    {"1〇世", {"1〇", "世"}},
    {std::string("a\0b", 3), {"a", std::string("\0b", 2)}},
};

TEST(SplitPieces, GivesThePiecesOfThePattern) {
  for (const Case& c : kCases) EXPECT_EQ(Split(c.text), c.pieces) << c.text;
}

TEST(SplitPieces, BadBytesAreSymbols) {
  EXPECT_EQ(Split("a\xFF\xE4\xBD b"), (Pieces{"a", "\xFF\xE4\xBD", " b"}));
  EXPECT_EQ(Split("\xFFword"), (Pieces{"\xFFword"}));
}

TEST(SplitPiecesProperty, PiecesTileTheText) {
  std::mt19937 rng(5);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = i % 2 == 0 ? testing::RandomText(rng, 40) : testing::RandomBytes(rng, 60);
    std::string joined;
    for (const std::string& piece : Split(text)) {
      ASSERT_FALSE(piece.empty()) << text;
      joined += piece;
    }
    ASSERT_EQ(joined, text);
  }
}

TEST(SplitPieces, IsLinear) {
  const auto seconds = [](const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(Split(text).empty());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::string alternating;
  for (int i = 0; i < 500'000; ++i) alternating += "A\u0301";
  for (const std::string& text :
       {std::string(2'000'000, 'A'), std::string(2'000'000, 'a'), std::string(2'000'000, ' '),
        std::string(2'000'000, '!'), "\n" + std::string(2'000'000, ' '), alternating})
    EXPECT_LT(seconds(text), 5.0) << text.substr(0, 4);
}

TEST(CharClassTable, SampleOfEveryClass) {
  const uint8_t* classes = CharClassTable();
  EXPECT_EQ(classes['A'], kUpperLike | kLetter);
  EXPECT_EQ(classes['z'], kLowerLike | kLetter);
  EXPECT_EQ(classes[0x2B0], kUpperLike | kLowerLike | kLetter);  // Lm
  EXPECT_EQ(classes[0x1C5], kUpperLike | kLetter);               // Lt
  EXPECT_EQ(classes[0x301], kUpperLike | kLowerLike);            // Mn
  EXPECT_EQ(classes[0x4E16], kHan | kLetter);
  EXPECT_EQ(classes[0x3005], kHan | kLetter);
  EXPECT_EQ(classes[0x3007], kHan | kNumber);
  EXPECT_EQ(classes[0x2E80], kHan);
  EXPECT_EQ(classes[0x16FF0], kHan);  // a Han mark is not a mark of the pattern
  EXPECT_EQ(classes[0x3006], kUpperLike | kLowerLike | kLetter);
  EXPECT_EQ(classes[0x2167], kNumber);
  EXPECT_EQ(classes[0x85], kWhiteSpace);
  EXPECT_EQ(classes[0x3000], kWhiteSpace);
  EXPECT_EQ(classes[0x180E], 0);
  EXPECT_EQ(classes[0x200B], 0);
  EXPECT_EQ(classes[0x1C], 0);
  EXPECT_EQ(classes[0xD800], 0);
  EXPECT_EQ(classes[0x10FFFF], 0);
}

std::vector<size_t> CutSizes(TextCutter& cutter, const std::string& text) {
  std::vector<std::string_view> parts;
  cutter.Cut(text, parts);
  std::vector<size_t> sizes;
  for (const std::string_view part : parts) sizes.push_back(part.size());
  return sizes;
}

TEST(TextCutter, CutsLongRunsAndWindows) {
  using ::testing::ElementsAre;
  const auto cut = [](const std::string& text) {
    TextCutter cutter;
    return CutSizes(cutter, text);
  };
  EXPECT_THAT(cut(""), ElementsAre());
  EXPECT_THAT(cut(std::string(25'000, 'x')), ElementsAre(25'000));
  EXPECT_THAT(cut(std::string(60'000, 'x')), ElementsAre(25'000, 25'000, 10'000));
  EXPECT_THAT(cut("  " + std::string(25'001, 'x') + "  "), ElementsAre(25'002, 3));
  EXPECT_THAT(cut(std::string(24'998, ' ') + "\x1c\x1f  "), ElementsAre(25'000, 2));
  std::string words;
  while (words.size() < 900'000) words += "12345678 ";
  EXPECT_THAT(cut(words.substr(0, 900'000)), ElementsAre(400'000, 400'000, 100'000));
  // A window's start begins a new run.
  const std::string late = words.substr(0, 389'997) + std::string(36'000, 'x');
  EXPECT_THAT(cut(late), ElementsAre(400'000, 25'000, 997));
}

TEST(TextCutter, CountsGoOnFromCallToCall) {
  using ::testing::ElementsAre;
  TextCutter cutter;
  EXPECT_THAT(CutSizes(cutter, std::string(24'000, 'x')), ElementsAre(24'000));
  EXPECT_THAT(CutSizes(cutter, std::string(2'000, 'x')), ElementsAre(1'000, 1'000));
  cutter.Skip(std::string(23'995, '|'));
  EXPECT_THAT(CutSizes(cutter, "1234567890"), ElementsAre(5, 5));
}

}  // namespace
}  // namespace perigee::text
