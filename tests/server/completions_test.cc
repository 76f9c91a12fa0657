#include "base/strings.h"
#include "server/api_fixture.h"

namespace perigee::server {
namespace {

constexpr const char* kPath = "/v1/completions";

using CompletionsApi = ApiTest;

TEST_F(CompletionsApi, AnswerUsageAndDefaults) {
  Json reply = PostOk(kPath, {{"prompt", "Once"}, {"model", "tiny-kimi-linear"}});
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["id"].get<std::string>().substr(0, 5), "cmpl-");
  EXPECT_EQ(reply["choices"],
            Json::parse(R"([{"index":0,"text":"All is well.","logprobs":null,"finish_reason":"stop"}])"));
  EXPECT_EQ(reply["usage"]["prompt_tokens"], Ids("Once").size());
  EXPECT_EQ(engine_->last_request().sampling.max_new_tokens, 16);
  EXPECT_EQ(engine_->last_request().prompt, Ids("Once"));

  script_.finish = engine::FinishReason::kNone;
  reply = PostOk(kPath, {{"prompt", "Once"}});
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["usage"]["completion_tokens"], 16);
}

TEST_F(CompletionsApi, SpecialStringsBecomeIdsUnlessForbidden) {
  std::string prompt = "<|im_user|>user<|im_middle|>hi<|im_end|>";
  PostOk(kPath, {{"prompt", prompt}});
  EXPECT_EQ(engine_->last_request().prompt, Ids(prompt, true));
  PostOk(kPath, {{"prompt", prompt}, {"allow_special_tokens", false}});
  EXPECT_EQ(engine_->last_request().prompt, Ids(prompt, false));
  EXPECT_NE(Ids(prompt, true), Ids(prompt, false));
}

TEST_F(CompletionsApi, ListsOfPromptsAndChoicesAreNumberedThrough) {
  for (const Json& prompt : {Json({"a", "bc"}), Json::array({Json(ByteIds("a")), Json(ByteIds("bc"))})}) {
    Json reply = PostOk(kPath, {{"prompt", prompt}, {"n", 2}});
    ASSERT_EQ(reply["choices"].size(), 4u);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(reply["choices"][i]["index"], i);
    auto requests = engine_->requests();
    ASSERT_GE(requests.size(), 4u);
    auto last = requests.end() - 4;
    EXPECT_EQ(last[0].prompt, last[1].prompt);
    EXPECT_EQ(last[2].prompt, last[3].prompt);
    EXPECT_EQ(last[3].sampling.choice, 1);
    EXPECT_EQ(reply["usage"]["prompt_tokens"], last[0].prompt.size() + last[2].prompt.size());
  }
  PostOk(kPath, {{"prompt", ByteIds("abc")}});
  EXPECT_EQ(engine_->last_request().prompt, ByteIds("abc"));
}

TEST_F(CompletionsApi, StreamJoinsToTheSameAnswer) {
  auto chunks =
      PostStream(kPath, {{"prompt", {"a", "b"}}, {"n", 2}, {"stream_options", {{"include_usage", true}}}});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(StreamedText(chunks, i), "All is well.");
  int finished = 0;
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "text_completion");
    for (const Json& choice : chunk["choices"]) finished += !choice["finish_reason"].is_null();
  }
  EXPECT_EQ(finished, 4);
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 4 * (Ids("All is well.").size() + 1));
}

TEST_F(CompletionsApi, EchoWithAndWithoutLogprobs) {
  Json reply = PostOk(kPath, {{"prompt", "Žlutý <|im_end|>"}, {"echo", true}});
  EXPECT_EQ(reply["choices"][0]["text"], "Žlutý <|im_end|>All is well.");
  EXPECT_EQ(StreamedText(PostStream(kPath, {{"prompt", "Žlutý"}, {"echo", true}, {"n", 2}}), 1),
            "ŽlutýAll is well.");

  script_.tokens = ByteIds("ok");
  Json body = {{"prompt", ByteIds("aéb")}, {"echo", true}, {"logprobs", 2}};
  Json logprobs = PostOk(kPath, body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"a", "bytes:\\xc3", "bytes:\\xa9", "b", "o", "k"}));
  EXPECT_EQ(logprobs["token_logprobs"], (Json{nullptr, -1.0, -2.0, -3.0, -0.5, -0.5}));
  EXPECT_EQ(logprobs["text_offset"], (Json{0, 1, 1, 2, 3, 4}));
  ASSERT_EQ(logprobs["top_logprobs"].size(), 6u);
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][3], (Json{{"b", -3.0}}));
  EXPECT_EQ(logprobs["top_logprobs"][4].size(), 2u);

  Json tokens = Json::array(), offsets = Json::array();
  for (const Json& chunk : PostStream(kPath, body)) {
    for (const Json& t : chunk["choices"][0]["logprobs"]["tokens"]) tokens.push_back(t);
    for (const Json& t : chunk["choices"][0]["logprobs"]["text_offset"]) offsets.push_back(t);
  }
  EXPECT_EQ(tokens, logprobs["tokens"]);
  EXPECT_EQ(offsets, logprobs["text_offset"]);
}

TEST_F(CompletionsApi, EchoAloneComputesThePromptOnly) {
  Json body = {{"prompt", ByteIds("abc")}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 0}};
  Json reply = PostOk(kPath, body);
  EXPECT_EQ(reply["choices"][0]["text"], "abc");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["choices"][0]["logprobs"]["token_logprobs"], (Json{nullptr, -1.0, -2.0}));
  EXPECT_EQ(reply["usage"]["completion_tokens"], 0);
  EXPECT_EQ(engine_->last_request().sampling.max_new_tokens, 0);
  EXPECT_TRUE(engine_->last_request().sampling.prompt_logprobs);
}

TEST_F(CompletionsApi, LogprobsZeroListsNoAlternatives) {
  script_.tokens = ByteIds("ok");
  Json logprobs = PostOk(kPath, {{"prompt", "a"}, {"logprobs", 0}})["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"o", "k"}));
  EXPECT_EQ(logprobs["top_logprobs"], nullptr);
}

TEST_F(CompletionsApi, ContextGrid) {
  constexpr int64_t kContext = 50;
  Restart({}, kContext);
  script_.finish = engine::FinishReason::kNone;
  for (int64_t prompt : {kContext - 2, kContext - 1, kContext, kContext + 1, 10 * kContext}) {
    for (std::optional<int64_t> max_tokens : {std::optional<int64_t>(), std::optional<int64_t>(0),
                                              std::optional<int64_t>(1), std::optional<int64_t>(2)}) {
      Json body = {{"prompt", std::vector<int>(static_cast<size_t>(prompt), 5)}};
      if (max_tokens) body["max_tokens"] = *max_tokens;
      if (prompt < kContext && prompt + max_tokens.value_or(0) <= kContext) {
        Json reply = PostOk(kPath, body);
        EXPECT_EQ(reply["usage"]["completion_tokens"], max_tokens.value_or(kContext - prompt));
        EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
        continue;
      }
      Json error = PostError(400, kPath, body);
      EXPECT_EQ(error["code"], "context_length_exceeded");
      std::string message = error["message"];
      EXPECT_NE(message.find(std::to_string(prompt) + " tokens"), std::string::npos) << message;
      EXPECT_NE(message.find(std::to_string(kContext) + " tokens"), std::string::npos) << message;
      EXPECT_EQ(error["param"], prompt < kContext ? "max_tokens" : "prompt");
    }
  }
  EXPECT_EQ(test::Get(port(), "/health").status, 200);
}

TEST_F(CompletionsApi, EnginesRefusalIsTheAnswer) {
  Json error = PostError(400, kPath, {{"prompt", {1, 1000000}}});
  EXPECT_EQ(error["type"], "invalid_request_error");
  engine_->set_refusal(ResourceExhausted("no room"));
  for (bool stream : {false, true}) {
    error = PostError(503, kPath, {{"prompt", "a"}, {"stream", stream}, {"n", 2}});
    EXPECT_EQ(error["message"], "no room");
    EXPECT_EQ(error["type"], "server_error");
  }
}

}  // namespace
}  // namespace perigee::server
