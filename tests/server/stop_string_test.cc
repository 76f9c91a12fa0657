#include "server/api_fixture.h"

namespace perigee::server {
namespace {

using StopStringApi = ApiTest;

// The answer to one request on every endpoint, streamed and not.
std::vector<std::string> TextsEverywhere(int port, const Json& stop) {
  Json chat = Chat("hi", {{"stop", stop}});
  Json completion = {{"prompt", "hi"}, {"stop", stop}, {"max_tokens", 200}};
  Json generate = {{"text", "hi"}, {"sampling_params", {{"stop", stop}}}};
  auto post = [&](const char* path, Json body, bool stream) {
    body["stream"] = stream;
    return test::Post(port, path, body.dump()).body;
  };
  auto events = [](const std::string& body) {
    std::vector<Json> parsed;
    for (const std::string& event : test::Events(body)) {
      if (event != "[DONE]") parsed.push_back(Json::parse(event));
    }
    return parsed;
  };
  return {Json::parse(post("/v1/chat/completions", chat, false))["choices"][0]["message"]["content"],
          StreamedContent(events(post("/v1/chat/completions", chat, true))),
          Json::parse(post("/v1/completions", completion, false))["choices"][0]["text"],
          StreamedText(events(post("/v1/completions", completion, true))),
          Json::parse(post("/generate", generate, false))["text"],
          events(post("/generate", generate, true)).back()["text"]};
}

TEST_F(StopStringApi, EveryLengthAtEveryTokenAlignment) {
  const std::string text = "xxABCDEFGHIJKLMNOPyy";
  for (size_t length = 1; length <= 12; ++length) {
    std::string stop = text.substr(4, length);
    for (size_t step = 1; step <= 5; ++step) {
      script_.tokens = ByteIds(text);
      script_.tokens_per_delivery = step;
      for (const std::string& answer : TextsEverywhere(port(), stop))
        EXPECT_EQ(answer, "xxAB") << stop << " " << step;
    }
  }
}

TEST_F(StopStringApi, InsideTokensOfSeveralCharacters) {
  const std::string text = "The weather is fine today, is it not?";
  auto ids = Ids(text);
  ASSERT_LT(ids.size(), text.size());
  script_.tokens = ids;
  for (size_t begin = 0; begin + 3 < text.size(); ++begin) {
    std::string stop = text.substr(begin, 4);
    std::string expected = text.substr(0, text.find(stop));
    for (const std::string& answer : TextsEverywhere(port(), stop)) EXPECT_EQ(answer, expected) << stop;
  }
}

TEST_F(StopStringApi, OverlapsManyStopsAndWideCharacters) {
  struct Case {
    const char* text;
    Json stop;
    const char* expected;
  };
  const Case cases[] = {
      {"aaab", "aab", "a"},
      {"ababac", "abac", "ab"},
      {"one two three", {"three", "two"}, "one "},
      {"naïve 世界 end", "世界", "naïve "},
      {"naïve 世界 end", "ï", "na"},
      {"è", "é", "è"},  // same first byte
      {"almost STO", "STOP", "almost STO"},
      {"x", "x", ""},
      {"😀😁", "😁", "😀"},
  };
  for (const Case& c : cases) {
    script_.tokens = ByteIds(c.text);
    for (const std::string& answer : TextsEverywhere(port(), c.stop)) EXPECT_EQ(answer, c.expected) << c.text;
  }
}

TEST_F(StopStringApi, AMatchEndsTheRequestAtOnce) {
  script_.tokens = ByteIds("ab STOP and so on ");
  script_.finish = engine::FinishReason::kNone;
  engine_->set_step_time(std::chrono::milliseconds(1));
  Json body = Chat("hi", {{"stop", "STOP"}});
  Json reply = PostOk("/v1/chat/completions", body);
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "ab ");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["usage"]["completion_tokens"], 7);
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(engine_->cancelled(), 1);
  auto chunks = PostStream("/v1/chat/completions", body);
  EXPECT_EQ(StreamedContent(chunks), "ab ");
  EXPECT_TRUE(engine_->WaitIdle());
}

TEST_F(StopStringApi, LogprobsListNothingOfTheStop) {
  script_.tokens = ByteIds("ab STOP");
  Json body = {{"prompt", "x"}, {"stop", "STOP"}, {"logprobs", 1}};
  Json logprobs = PostOk("/v1/completions", body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"a", "b", " "}));
  Json tokens = Json::array();
  for (const Json& chunk : PostStream("/v1/completions", body)) {
    for (const Json& t : chunk["choices"][0]["logprobs"]["tokens"]) tokens.push_back(t);
  }
  EXPECT_EQ(tokens, logprobs["tokens"]);
}

}  // namespace
}  // namespace perigee::server
