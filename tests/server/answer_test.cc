#include "server/answer.h"

#include <gtest/gtest.h>

#include "server/api_fixture.h"

namespace perigee::server {
namespace {

using engine::FinishReason;

const ToolMarkers& Markers() {
  static const ToolMarkers markers = ToolMarkers::Find(TinyTokenizer());
  return markers;
}

engine::Output Delivery(std::vector<engine::TokenId> ids, FinishReason finish = FinishReason::kNone,
                        std::optional<engine::TokenId> stop = std::nullopt) {
  engine::Output out{.finish = finish, .stop_token = stop, .prompt_tokens = 7};
  for (engine::TokenId id : ids) out.tokens.push_back({.id = id, .logprob = -1});
  return out;
}

AnswerBuilder Builder(AnswerOptions options = {}) {
  return AnswerBuilder(TinyTokenizer(), Markers(), std::move(options), 0, 0);
}

TEST(Answer, HalfACharacterWaitsForTheRest) {
  AnswerBuilder builder = Builder();
  auto bytes = ByteIds("é!");
  EXPECT_EQ(builder.Push(Delivery({bytes[0]})).text, "");
  EXPECT_EQ(builder.answer().shown_tokens, 0u);
  EXPECT_EQ(builder.Push(Delivery({bytes[1]})).text, "é");
  EXPECT_EQ(builder.answer().shown_tokens, 2u);
  EXPECT_EQ(builder.Push(Delivery({bytes[2]}, FinishReason::kLength)).text, "!");
  EXPECT_EQ(builder.answer().end, AnswerEnd::kLength);
  EXPECT_EQ(builder.answer().text, "é!");
  EXPECT_EQ(builder.answer().completion_tokens(), 3);
  EXPECT_EQ(builder.answer().tokens[2].text_offset, 1);
}

TEST(Answer, AnUnfinishedCharacterAtTheEndIsReplaced) {
  AnswerBuilder builder = Builder();
  builder.Push(Delivery({ByteIds("é")[0]}, FinishReason::kLength));
  EXPECT_EQ(builder.answer().text, "\xEF\xBF\xBD");
}

TEST(Answer, TheStopIdCountsButIsNotShown) {
  AnswerBuilder builder = Builder({.skip_special_tokens = false});
  engine::TokenId end = SpecialId("<|im_end|>");
  auto ids = ByteIds("ok");
  ids.push_back(end);
  AnswerDelta delta = builder.Push(Delivery(ids, FinishReason::kStop, end));
  EXPECT_EQ(delta.text, "ok");
  EXPECT_EQ(builder.answer().completion_tokens(), 3);
  EXPECT_EQ(builder.answer().end, AnswerEnd::kStop);
  EXPECT_EQ(builder.answer().stop_token, end);
  EXPECT_FALSE(builder.answer().tokens[2].content);
}

TEST(Answer, SpecialTokensShowOnlyWhenAskedFor) {
  for (bool skip : {true, false}) {
    AnswerBuilder builder = Builder({.skip_special_tokens = skip});
    builder.Push(Delivery({SpecialId("<|im_user|>")}, FinishReason::kLength));
    EXPECT_EQ(builder.answer().text, skip ? "" : "<|im_user|>");
  }
}

TEST(Answer, NothingAfterAStopStringCounts) {
  AnswerBuilder builder = Builder({.stop = {"STOP"}});
  AnswerDelta delta = builder.Push(Delivery(ByteIds("go STOP on")));
  EXPECT_EQ(delta.text, "go ");
  EXPECT_EQ(builder.answer().end, AnswerEnd::kStop);
  EXPECT_EQ(builder.answer().stop_text, "STOP");
  EXPECT_EQ(builder.answer().completion_tokens(), 7);  // up to the P
  EXPECT_EQ(builder.answer().shown_tokens, 3u);
  EXPECT_EQ(builder.Push(Delivery(ByteIds("x"), FinishReason::kLength)).text, "");
  EXPECT_EQ(builder.answer().completion_tokens(), 7);
}

TEST(Answer, HeldBackTextComesOutAtTheEnd) {
  AnswerBuilder builder = Builder({.stop = {"STOP"}});
  EXPECT_EQ(builder.Push(Delivery(ByteIds("go STO"))).text, "go ");
  EXPECT_EQ(builder.answer().shown_tokens, 3u);
  AnswerDelta delta = builder.Push(Delivery({}, FinishReason::kLength));
  EXPECT_EQ(delta.text, "STO");
  EXPECT_EQ(delta.first_token, 3u);
  EXPECT_EQ(builder.answer().shown_tokens, 6u);
}

TEST(Answer, PromptNumbersAreKept) {
  AnswerBuilder builder = Builder();
  engine::Output first = Delivery(ByteIds("a"));
  first.cached_tokens = 4;
  first.prompt_logprobs = {std::nullopt, -2.0f};
  builder.Push(std::move(first));
  engine::Output last = Delivery({}, FinishReason::kLength);
  last.cached_tokens = 4;
  builder.Push(std::move(last));
  EXPECT_EQ(builder.answer().prompt_tokens, 7);
  EXPECT_EQ(builder.answer().cached_tokens, 4);
  ASSERT_EQ(builder.answer().prompt_logprobs.size(), 2u);
  EXPECT_EQ(builder.answer().prompt_logprobs[1], -2.0f);
}

}  // namespace
}  // namespace perigee::server
