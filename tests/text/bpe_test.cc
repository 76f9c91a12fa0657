#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "text/text_testing.h"

namespace perigee::text {
namespace {

using Ids = std::vector<TokenId>;

Vocab MakeVocab(const std::vector<std::string>& tokens) {
  return Vocab::Parse(testing::TiktokenModel(tokens), "test").value();
}

Ids Encode(const Vocab& vocab, std::string_view piece) {
  BpeEncoder bpe(vocab);
  Ids ids;
  bpe.Encode(piece, ids);
  return ids;
}

// The definition, one merge at a time over all pairs.
Ids NaiveEncode(const Vocab& vocab, const std::string& piece) {
  if (const TokenId whole = vocab.Find(piece); whole >= 0) return {whole};
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  while (true) {
    size_t best = 0;
    TokenId best_rank = -1;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const TokenId rank = vocab.Find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (best_rank < 0 || rank < best_rank)) {
        best = i;
        best_rank = rank;
      }
    }
    if (best_rank < 0) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<long>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(vocab.Find(part));
  return ids;
}

TEST(Bpe, LowestRankFirstLeftmostOfEquals) {
  using ::testing::ElementsAre;
  const Vocab vocab = MakeVocab({"ab", "bc", "aa", "abc"});
  EXPECT_THAT(Encode(vocab, ""), ElementsAre());
  EXPECT_THAT(Encode(vocab, "x"), ElementsAre('x'));
  EXPECT_THAT(Encode(vocab, "abc"), ElementsAre(259));
  EXPECT_THAT(Encode(vocab, "abcx"), ElementsAre(259, 'x'));
  EXPECT_THAT(Encode(vocab, "xbc"), ElementsAre('x', 257));
  EXPECT_THAT(Encode(vocab, "aaa"), ElementsAre(258, 'a'));
  EXPECT_THAT(Encode(vocab, "aab"), ElementsAre('a', 256));
}

TEST(Bpe, AWholePieceNeedsNoMergePath) {
  EXPECT_THAT(Encode(MakeVocab({"hello"}), "hello"), ::testing::ElementsAre(256));
  EXPECT_EQ(Encode(MakeVocab({"hello"}), "hellos").size(), 6u);
}

TEST(BpeProperty, EqualsTheDefinitionOnRandomVocabularies) {
  std::mt19937 rng(7);
  std::uniform_int_distribution<int> letter('a', 'c');
  std::uniform_int_distribution<size_t> length(2, 5), piece_length(1, 40), count(1, 60);
  const auto word = [&](size_t n) {
    std::string w;
    for (; n > 0; --n) w += static_cast<char>(letter(rng));
    return w;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> tokens;
    for (size_t n = count(rng); n > 0; --n) {
      const std::string token = word(length(rng));
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    }
    const Vocab vocab = MakeVocab(tokens);
    for (int i = 0; i < 20; ++i) {
      const std::string piece = word(piece_length(rng));
      ASSERT_EQ(Encode(vocab, piece), NaiveEncode(vocab, piece)) << piece;
    }
  }
}

TEST(Bpe, LongPiecesAreNotQuadratic) {
  std::vector<std::string> tokens;
  for (size_t n = 2; n <= 128; n *= 2) tokens.emplace_back(n, 'a');
  const Vocab vocab = MakeVocab(tokens);
  const auto start = std::chrono::steady_clock::now();
  const Ids ids = Encode(vocab, std::string(1'000'000, 'a'));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(ids.size(), 1'000'000u / 128 + 1);  // 7812 of 128 bytes and one of 64
  EXPECT_EQ(ids.back(), vocab.Find(std::string(64, 'a')));
  EXPECT_LT(seconds.count(), 10.0);
}

}  // namespace
}  // namespace perigee::text
