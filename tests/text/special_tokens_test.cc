#include "text/special_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/text_testing.h"

namespace perigee::text {
namespace {

using ::testing::HasSubstr;

TEST(SpecialTokens, TheDocumentedTableForTheFullVocabulary) {
  const auto specials = SpecialTokens::Create(163'584, {}, "f").value();
  const std::pair<TokenId, const char*> table[] = {
      {163584, "[BOS]"},
      {163585, "[EOS]"},
      {163586, "<|im_end|>"},
      {163587, "<|im_user|>"},
      {163588, "<|im_assistant|>"},
      {163589, "<|reserved_token_163589|>"},
      {163590, "<|start_header_id|>"},
      {163591, "<|end_header_id|>"},
      {163592, "<|reserved_token_163592|>"},
      {163593, "[EOT]"},
      {163594, "<|im_system|>"},
      {163595, "<|tool_calls_section_begin|>"},
      {163596, "<|tool_calls_section_end|>"},
      {163597, "<|tool_call_begin|>"},
      {163598, "<|tool_call_argument_begin|>"},
      {163599, "<|tool_call_end|>"},
      {163600, "<|reserved_token_163600|>"},
      {163601, "<|im_middle|>"},
      {163602, "<|reserved_token_163602|>"},
      {163837, "<|reserved_token_163837|>"},
      {163838, "[UNK]"},
      {163839, "[PAD]"},
  };
  for (const auto& [id, name] : table) {
    EXPECT_EQ(specials.Name(id), name);
    EXPECT_EQ(specials.Find(name), id);
    EXPECT_EQ(specials.Skipped(id), id < 163595 || id > 163599) << name;
  }
  // The reference also makes up 163840 and 163841, which have no embedding row.
  EXPECT_FALSE(specials.Contains(163'840));
  EXPECT_FALSE(specials.Contains(163'583));
}

TEST(SpecialTokens, TheFileOverridesNamesAndFlags) {
  const auto added = ParseAddedTokens(R"({"added_tokens_decoder": {
      "1005": {"content": "<|mine|>", "special": false},
      "1002": {"content": "<|stop|>"},
      "1011": {"content": "<|tool_calls_section_begin|>", "special": true},
      "1020": {"content": "<|im_middle|>"},
      "1256": {"content": "beyond"}, "999": {"content": "below"},
      "4294968301": {"content": "wraps"}}})",
                                      "f");
  ASSERT_TRUE(added.ok()) << added.status().message();
  const auto specials = SpecialTokens::Create(1000, *added, "f");
  ASSERT_TRUE(specials.ok()) << specials.status().message();
  EXPECT_EQ(specials->Name(1005), "<|mine|>");
  EXPECT_FALSE(specials->Skipped(1005));
  EXPECT_EQ(specials->Name(1002), "<|stop|>");
  EXPECT_TRUE(specials->Skipped(1002));
  EXPECT_EQ(specials->Find("<|im_end|>"), std::nullopt);
  EXPECT_TRUE(specials->Skipped(1011));
  EXPECT_FALSE(specials->Skipped(1012));
  // A default name that the file gives to another id falls back to the reserved one.
  EXPECT_EQ(specials->Find("<|im_middle|>"), 1020);
  EXPECT_EQ(specials->Name(1017), "<|reserved_token_1017|>");
  EXPECT_EQ(specials->Find("beyond"), std::nullopt);
  EXPECT_EQ(specials->Find("wraps"), std::nullopt);
}

TEST(SpecialTokens, FindsTheFirstAndLongestName) {
  const auto specials =
      SpecialTokens::Create(0, {{5, "<|im_end|>!", {}}, {8, "<", {}}, {12, "é", {}}}, "f").value();
  const auto find = [&](std::string_view text, size_t from = 0) {
    const auto match = specials.FindIn(text, from);
    return match ? std::pair<long, TokenId>(static_cast<long>(match->begin), match->id)
                 : std::pair<long, TokenId>(-1, -1);
  };
  using Found = std::pair<long, TokenId>;
  EXPECT_EQ(find(""), Found(-1, -1));
  EXPECT_EQ(find("no [bos] here"), Found(-1, -1));
  EXPECT_EQ(find("a<|im_end|>!"), Found(1, 5));
  EXPECT_EQ(find("a<|im_end|>?"), Found(1, 2));
  EXPECT_EQ(find("a<|im_end|"), Found(1, 8));
  EXPECT_EQ(find("[BO[BOS]"), Found(3, 0));
  EXPECT_EQ(find("[BOS][EOS]", 1), Found(5, 1));
  EXPECT_EQ(find("caf\xC3\xA9"), Found(3, 12));
  EXPECT_EQ(find("<|reserved_token_199|>", 1), Found(-1, -1));
  EXPECT_EQ(find(" <|reserved_token_199|>"), Found(1, 199));
}

TEST(SpecialTokens, NamesMustBeDistinctAndNotEmpty) {
  const auto error = [](const std::vector<AddedToken>& added) {
    const auto made = SpecialTokens::Create(10, added, "f");
    return made.ok() ? std::string("ok") : made.status().message();
  };
  EXPECT_EQ(error({{20, "x", {}}, {21, "x", {}}}),
            "f: added_tokens_decoder entry 21: another entry is also named \"x\"");
  EXPECT_EQ(error({{20, "x", {}}, {20, "y", {}}}), "f: added_tokens_decoder entry 20 is given twice");
  EXPECT_EQ(error({{20, "", {}}}), "f: added_tokens_decoder entry 20 has an empty content");
  EXPECT_EQ(error({{30, "<|reserved_token_31|>", {}}}),
            "f: ids 30 and 31 are both named \"<|reserved_token_31|>\"");
}

TEST(ParseAddedTokens, BadFilesAreOneLine) {
  EXPECT_TRUE(ParseAddedTokens("", "f").value().empty());
  EXPECT_TRUE(ParseAddedTokens("{}", "f").value().empty());
  EXPECT_TRUE(ParseAddedTokens(R"({"added_tokens_decoder": null})", "f").value().empty());
  const std::pair<std::string, std::string> cases[] = {
      {"{", "f: not valid JSON at byte"},
      {"[]", "f: expected a JSON object"},
      {"\xFF", "f: not valid JSON at byte"},
      {std::string(100'000, '['), "f: nested deeper than 128 levels"},
      {R"({"added_tokens_decoder": []})", "added_tokens_decoder: expected an object"},
      {R"({"added_tokens_decoder": {"x": {}}})", "\"x\" is not a token id"},
      {R"({"added_tokens_decoder": {"-1": {}}})", "\"-1\" is not a token id"},
      {R"({"added_tokens_decoder": {"7": 3}})", "entry 7: expected an object"},
      {R"({"added_tokens_decoder": {"7": {}}})", "entry 7: expected a string \"content\""},
      {R"({"added_tokens_decoder": {"7": {"content": "a", "special": 1}}})",
       "entry 7: \"special\" must be true or false"},
  };
  for (const auto& [text, message] : cases) {
    const auto parsed = ParseAddedTokens(text, "f");
    ASSERT_FALSE(parsed.ok()) << text.substr(0, 60);
    EXPECT_THAT(parsed.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace perigee::text
