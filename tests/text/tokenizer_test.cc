#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "text/detokenizer.h"
#include "text/text_testing.h"

namespace perigee::text {
namespace {

using testing::RandomText;
using testing::TiktokenModel;
using testing::TinyTokenizer;
using Specials = Tokenizer::Specials;
using Ids = std::vector<TokenId>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Ids Recognise(const Tokenizer& t, std::string_view text) {
  return t.Encode(text, Specials::kRecognise);
}

TEST(TokenizerGolden, IdsOfEveryCaseOfTheBundledModel) {
  std::ifstream file(PERIGEE_TEST_DATA "/golden/tiny-kimi-linear.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden["cases"].size(), 8u);
  for (const auto& c : golden["cases"]) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<Ids>();
    EXPECT_EQ(Recognise(TinyTokenizer(), text), ids) << c["name"];
    EXPECT_EQ(Decode(TinyTokenizer(), ids, false), text) << c["name"];
    EXPECT_EQ(Decode(TinyTokenizer(), c["greedy"].get<Ids>(), false), c["text_out"].get<std::string>())
        << c["name"];
  }
}

TEST(Tokenizer, SizesAndSpecialIdsAreRelativeToTheRanks) {
  const Tokenizer& t = TinyTokenizer();
  EXPECT_EQ(t.num_ranks(), 1792);
  EXPECT_EQ(t.vocab_size(), 2048);
  EXPECT_EQ(t.SpecialId("[BOS]"), 1792);
  EXPECT_EQ(t.SpecialId("<|im_middle|>"), 1809);
  EXPECT_EQ(t.SpecialId("[PAD]"), 2047);
  EXPECT_EQ(t.SpecialId("<|reserved_token_1797|>"), 1797);
  EXPECT_EQ(t.SpecialId("<|no_such|>"), std::nullopt);
  EXPECT_EQ(t.Bytes(1794), "<|im_end|>");
  EXPECT_EQ(t.Bytes(46), ".");
  EXPECT_EQ(t.Bytes(-1), "");
  EXPECT_EQ(t.Bytes(2048), "");
  EXPECT_FALSE(t.IsSpecial(1791));
  EXPECT_TRUE(t.IsSpecial(1792));
  EXPECT_TRUE(t.IsSpecial(2047));
  EXPECT_FALSE(t.IsSpecial(2048));
  EXPECT_TRUE(t.IsSkippedSpecial(1794));
  EXPECT_TRUE(t.IsSkippedSpecial(1797));
  EXPECT_FALSE(t.IsSkippedSpecial(1803));
  EXPECT_FALSE(t.IsSkippedSpecial(2048));
}

TEST(Tokenizer, SpecialStringsAreIdsOnlyWhenAskedFor) {
  const Tokenizer& t = TinyTokenizer();
  for (TokenId id = 1792; id < 2048; ++id) {
    const std::string name(t.Bytes(id));
    EXPECT_THAT(Recognise(t, name), ElementsAre(id));
    const Ids plain = t.Encode("x" + name + "y", Specials::kPlainText);
    for (const TokenId p : plain) EXPECT_FALSE(t.IsSpecial(p)) << name;
    EXPECT_EQ(Decode(t, plain, true), "x" + name + "y");
  }
  EXPECT_THAT(Recognise(t, "<|im_end|><|im_end|>"), ElementsAre(1794, 1794));
  EXPECT_THAT(Recognise(t, "<|<|im_end|>|>").size(), 5u);
  EXPECT_THAT(Recognise(t, ""), ElementsAre());
}

TEST(Tokenizer, TextWithoutSpecialStringsGivesTheSameIdsEitherWay) {
  const std::string text = "It's 10:30 <| not special |> [BOX] naïve 世界";
  EXPECT_EQ(Recognise(TinyTokenizer(), text), TinyTokenizer().Encode(text, Specials::kPlainText));
}

TEST(TokenizerProperty, DecodingGivesTheTextBack) {
  std::mt19937 rng(1);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = RandomText(rng, 40);
    ASSERT_TRUE(IsValidUtf8(text));
    ASSERT_EQ(Decode(TinyTokenizer(), Recognise(TinyTokenizer(), text), false), text);
    ASSERT_EQ(Decode(TinyTokenizer(), TinyTokenizer().Encode(text, Specials::kPlainText), true), text);
  }
}

TEST(TokenizerProperty, BytesThatAreNotUtf8AreKeptToo) {
  std::mt19937 rng(2);
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes = testing::RandomBytes(rng, 30);
    std::string back;
    for (const TokenId id : Recognise(TinyTokenizer(), bytes)) back += TinyTokenizer().Bytes(id);
    ASSERT_EQ(back, bytes);
  }
}

// One token for "aa": a cut shows as the single "a" before it.
std::unique_ptr<Tokenizer> PairTokenizer() {
  return Tokenizer::FromText(TiktokenModel({"aa", "  "}), "", "test").value();
}

TEST(TokenizerCuts, ARunIsCutAfter25000Characters) {
  const auto t = PairTokenizer();
  EXPECT_EQ(Recognise(*t, std::string(25'000, 'a')).size(), 12'500u);
  EXPECT_EQ(Recognise(*t, std::string(25'001, 'a')).size(), 12'501u);
  // The cut falls inside the pair that 24,999 + 2 characters would end with.
  const Ids odd = Recognise(*t, "b" + std::string(25'001, 'a'));
  EXPECT_EQ(odd[1 + 12'499], 'a');
  EXPECT_EQ(odd.size(), 1u + 12'499 + 1 + 1);
}

TEST(TokenizerCuts, ASpecialStringAcrossACutIsText) {
  const auto t = PairTokenizer();
  const std::string special = "<|im_end|>";
  const TokenId id = *t->SpecialId(special);
  EXPECT_EQ(Recognise(*t, std::string(24'990, 'a') + special).back(), id);
  EXPECT_EQ(Recognise(*t, std::string(24'991, 'a') + special).back(), '>');
  EXPECT_EQ(Recognise(*t, std::string(25'000, 'a') + special).back(), id);
}

TEST(TokenizerCuts, WindowsOf400000CharactersAreIndependent) {
  const auto t = PairTokenizer();
  std::string words;
  for (int i = 0; i < 80'000; ++i) words += "aaaa ";
  // 400,000 characters; the next one begins a new window.
  const Ids whole = Recognise(*t, words + "aa");
  EXPECT_EQ(whole.back(), 256);
  const Ids shifted = Recognise(*t, words.substr(1) + "aa");
  EXPECT_THAT(Ids(shifted.end() - 3, shifted.end()), ElementsAre(' ', 'a', 'a'));
  // Characters are counted, not bytes.
  std::string wide;
  for (int i = 0; i < 399'999; ++i) wide += i % 2 == 0 ? "é" : " ";
  EXPECT_EQ(Recognise(*t, wide + "aa").back(), 'a');
  EXPECT_EQ(Recognise(*t, wide.substr(3) + "aa").back(), 256);
}

TEST(TokenizerSpeed, AMillionCharactersOfAnything) {
  std::mt19937 rng(3);
  std::string cjk, random;
  for (int i = 0; i < 1'000'000; ++i) cjk += i % 3 == 0 ? "世" : "界";
  std::uniform_int_distribution<int> byte(0, 255);
  while (random.size() < 1'000'000) random += static_cast<char>(byte(rng));
  const std::string texts[] = {std::string(1'000'000, 'a'), std::string(1'000'000, ' '),
                               std::string(1'000'000, '<'), cjk, ReplaceInvalidUtf8(random)};
  for (const std::string& text : texts) {
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = Recognise(TinyTokenizer(), text);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(Decode(TinyTokenizer(), ids, false), text);
    EXPECT_LT(seconds.count(), 5.0) << text.substr(0, 10);
    RecordProperty("seconds_" + std::to_string(&text - texts), std::to_string(seconds.count()));
  }
}

TEST(TokenizerLoad, MissingFolderAndEmptyConfig) {
  const auto missing = Tokenizer::Load("no/such/folder");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("no/such/folder/tiktoken.model"));

  const std::string folder = ::testing::TempDir() + "perigee_tokenizer_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tiktoken.model") << TiktokenModel();
  EXPECT_EQ(Tokenizer::Load(folder).value()->vocab_size(), 512);
  std::ofstream(folder + "/tokenizer_config.json");
  const auto empty = Tokenizer::Load(folder);
  ASSERT_FALSE(empty.ok());
  EXPECT_THAT(empty.status().message(), HasSubstr("tokenizer_config.json is empty"));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/tiktoken.model");
  EXPECT_FALSE(Tokenizer::Load(folder).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace perigee::text
