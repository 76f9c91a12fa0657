#include "text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "text/text_testing.h"

namespace perigee::text {
namespace {

using testing::TinyTokenizer;
using Ids = std::vector<TokenId>;

Ids ByteIds(std::string_view bytes) {
  Ids ids;
  for (const char c : bytes) {
    for (TokenId id = 0; id < 256; ++id) {
      if (TinyTokenizer().Bytes(id)[0] == c) ids.push_back(id);
    }
  }
  return ids;
}

TEST(IncrementalDetokenizer, HoldsHalfACharacterBack) {
  IncrementalDetokenizer d(TinyTokenizer(), false);
  const Ids ids = ByteIds("a🙂é");
  ASSERT_EQ(ids.size(), 7u);
  std::vector<std::string> pieces;
  for (const TokenId id : ids) pieces.push_back(d.Push(id));
  EXPECT_THAT(pieces, ::testing::ElementsAre("a", "", "", "", "🙂", "", "é"));
  EXPECT_EQ(d.Flush(), "");
}

TEST(IncrementalDetokenizer, FlushesAnIncompleteCharacterAsOneReplacement) {
  IncrementalDetokenizer d(TinyTokenizer(), false);
  for (const TokenId id : ByteIds("\xF0\x9F\x98")) EXPECT_EQ(d.Push(id), "");
  EXPECT_EQ(d.Flush(), "\uFFFD");
  EXPECT_EQ(d.Flush(), "");
  // What cannot be completed any more is replaced at once.
  EXPECT_EQ(d.Push(ByteIds("\xE4")[0]), "");
  EXPECT_EQ(d.Push(ByteIds("!")[0]), "\uFFFD!");
}

TEST(IncrementalDetokenizer, SpecialTokens) {
  const TokenId end = *TinyTokenizer().SpecialId("<|im_end|>");
  const TokenId tool = *TinyTokenizer().SpecialId("<|tool_call_begin|>");
  const Ids half = ByteIds("\xC3\xA9");
  IncrementalDetokenizer keeps(TinyTokenizer(), false);
  EXPECT_EQ(keeps.Push(half[0]), "");
  EXPECT_EQ(keeps.Push(end), "\uFFFD<|im_end|>");
  IncrementalDetokenizer skips(TinyTokenizer(), true);
  EXPECT_EQ(skips.Push(half[0]), "");
  EXPECT_EQ(skips.Push(end), "");
  EXPECT_EQ(skips.Push(half[1]), "é");
  EXPECT_EQ(skips.Push(tool), "<|tool_call_begin|>");
  EXPECT_EQ(skips.Push(-1), "");
  EXPECT_EQ(skips.Push(1 << 30), "");
  EXPECT_EQ(Decode(TinyTokenizer(), {half[0], end, half[1], tool}, true), "é<|tool_call_begin|>");
}

TEST(IncrementalDetokenizerProperty, PiecesJoinToTheWholeDecoding) {
  std::mt19937 rng(21);
  std::uniform_int_distribution<TokenId> any(-2, 2050);
  for (int i = 0; i < 3000; ++i) {
    Ids ids;
    if (i % 2 == 0) {
      ids = ByteIds(testing::RandomBytes(rng, 25));
    } else {
      for (int n = 0; n < 20; ++n) ids.push_back(any(rng));
    }
    const bool skip = i % 3 == 0;
    IncrementalDetokenizer d(TinyTokenizer(), skip);
    std::string joined;
    for (size_t n = 0; n < ids.size(); ++n) {
      const std::string piece = d.Push(ids[n]);
      ASSERT_TRUE(IsValidUtf8(piece));
      joined += piece;
      // Ending here and flushing equals decoding what came so far.
      IncrementalDetokenizer ended = d;
      const Ids prefix(ids.begin(), ids.begin() + static_cast<long>(n) + 1);
      ASSERT_EQ(joined + ended.Flush(), Decode(TinyTokenizer(), prefix, skip));
    }
  }
}

struct Outcome {
  std::string text;
  std::string matched;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << "{" << o.text << ", " << o.matched << "}";
}

// Feeds `text` in pieces that end at the given places.
Outcome Feed(const std::vector<std::string>& stops, const std::string& text,
             const std::vector<size_t>& cuts) {
  StopMatcher matcher(stops);
  Outcome outcome;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size() && !matcher.stopped(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : text.size();
    outcome.text += matcher.Push(std::string_view(text).substr(begin, end - begin));
    begin = end;
  }
  if (!matcher.stopped()) outcome.text += matcher.Flush();
  outcome.matched = matcher.matched();
  return outcome;
}

TEST(StopMatcher, EveryStopLengthAtEveryAlignment) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz";
  for (size_t length = 1; length <= 12; ++length) {
    for (size_t at = 0; at + length <= text.size(); ++at) {
      const std::string stop = text.substr(at, length);
      const Outcome expected{text.substr(0, at), stop};
      for (size_t width = 1; width <= 8; ++width) {
        for (size_t first = 1; first <= width; ++first) {
          std::vector<size_t> cuts;
          for (size_t cut = first; cut < text.size(); cut += width) cuts.push_back(cut);
          ASSERT_EQ(Feed({stop}, text, cuts), expected) << length << " " << at << " " << width;
        }
      }
    }
  }
}

TEST(StopMatcher, NothingOfAStopIsShownBeforeTheMatch) {
  StopMatcher matcher({"DEFGHIJ"});
  EXPECT_EQ(matcher.Push("ABC"), "ABC");
  EXPECT_EQ(matcher.Push("D"), "");
  EXPECT_EQ(matcher.Push("EFGHI"), "");
  EXPECT_EQ(matcher.Push("D"), "DEFGHI");
  EXPECT_EQ(matcher.Push("EFGHIJKL"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "DEFGHIJ");
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, SelfOverlappingStops) {
  EXPECT_EQ(Feed({"aab"}, "aaaab", {1, 2, 3, 4}), (Outcome{"aa", "aab"}));
  EXPECT_EQ(Feed({"abab!"}, "ababab!x", {1, 4}), (Outcome{"ab", "abab!"}));
  EXPECT_EQ(Feed({"\n\n"}, "a\n\n\nb", {2}), (Outcome{"a", "\n\n"}));
}

TEST(StopMatcher, TheFirstToBeCompleteWins) {
  EXPECT_EQ(Feed({"late", "early"}, "an early and a late one", {5}), (Outcome{"an ", "early"}));
  EXPECT_EQ(Feed({"abcd", "bc"}, "xabcd", {}), (Outcome{"xa", "bc"}));
  // Complete at the same byte: the one that begins first.
  EXPECT_EQ(Feed({"c", "abc", "bc"}, "xabcd", {2}), (Outcome{"x", "abc"}));
}

TEST(StopMatcher, NoStops) {
  EXPECT_EQ(Feed({}, "text", {1, 2}), (Outcome{"text", ""}));
  EXPECT_EQ(Feed({"", ""}, "text", {2}), (Outcome{"text", ""}));
  StopMatcher matcher({""});
  EXPECT_EQ(matcher.Push("a"), "a");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, MultiByteStopsNeverSplitACharacter) {
  // U+4F60 and U+4F40 share two bytes.
  StopMatcher matcher({"\u4F40", "🙂👋"});
  EXPECT_EQ(matcher.Push("a\u4F60"), "a\u4F60");
  EXPECT_EQ(matcher.Push("🙂"), "");
  EXPECT_EQ(matcher.Push("🙂"), "🙂");
  EXPECT_EQ(matcher.Push("é"), "🙂é");
  EXPECT_EQ(matcher.Push("x🙂"), "x");
  EXPECT_EQ(matcher.Push("👋!"), "");
  EXPECT_EQ(matcher.matched(), "🙂👋");
}

TEST(StopMatcherProperty, AgreesWithSearchingTheWholeText) {
  std::mt19937 rng(31);
  std::uniform_int_distribution<int> letter('a', 'b');
  std::uniform_int_distribution<size_t> length(1, 5), text_length(0, 30), count(1, 3);
  const auto word = [&](size_t n) {
    std::string w;
    for (; n > 0; --n) w += static_cast<char>(letter(rng));
    return w;
  };
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::string> stops;
    for (size_t n = count(rng); n > 0; --n) stops.push_back(word(length(rng)));
    const std::string text = word(text_length(rng));
    Outcome expected{text, ""};
    size_t best_end = text.size() + 1;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const size_t end = at + stop.size();
      if (end < best_end || (end == best_end && stop.size() > expected.matched.size())) {
        best_end = end;
        expected = {text.substr(0, at), stop};
      }
    }
    std::vector<size_t> cuts;
    for (size_t cut = length(rng); cut < text.size(); cut += length(rng)) cuts.push_back(cut);
    ASSERT_EQ(Feed(stops, text, cuts), expected) << text;
  }
}

}  // namespace
}  // namespace perigee::text
