#include <random>

#include "base/strings.h"
#include "server/api_fixture.h"

namespace perigee::server {
namespace {

class BadRequestApi : public ApiTest {
 protected:
  int Status(std::string_view path, std::string_view body) { return test::Post(port(), path, body).status; }
  void ExpectHealthy() { EXPECT_EQ(PostOk("/generate", {{"text", "a"}})["text"], "All is well."); }
};

TEST_F(BadRequestApi, FieldByField) {
  struct Case {
    const char* field;
    const char* value;
  };
  const Case cases[] = {
      {"temperature", "\"hot\""},
      {"temperature", "-1"},
      {"temperature", "-1e-9"},
      {"temperature", "101"},
      {"temperature", "true"},
      {"temperature", "[]"},
      {"top_p", "0"},
      {"top_p", "2"},
      {"top_p", "-0.1"},
      {"top_p", "\"x\""},
      {"top_k", "-2"},
      {"top_k", "1.5"},
      {"top_k", "9999999999"},
      {"n", "0"},
      {"n", "17"},
      {"n", "1000000000"},
      {"n", "-1"},
      {"n", "1.5"},
      {"n", "\"2\""},
      {"max_tokens", "-1"},
      {"max_tokens", "1.5"},
      {"max_tokens", "\"x\""},
      {"max_tokens", "1e300"},
      {"max_tokens", "99999999999999999999"},
      {"stop", "5"},
      {"stop", "[5]"},
      {"stop", "{}"},
      {"stop", "[null]"},
      {"stop_token_ids", "5"},
      {"stop_token_ids", "[-1]"},
      {"stop_token_ids", "[\"a\"]"},
      {"seed", "\"x\""},
      {"seed", "1.5"},
      {"seed", "1e30"},
      {"stream", "\"yes\""},
      {"stream", "1"},
      {"ignore_eos", "0"},
      {"skip_special_tokens", "\"\""},
      {"stream_options", "[]"},
      {"stream_options", "true"},
      {"model", "5"},
      {"presence_penalty", "2"},
      {"frequency_penalty", "-2"},
      {"logit_bias", "{\"AI\":1}"},
      {"logit_bias", "{\"-1\":1e9}"},
      {"logit_bias", "5"},
  };
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    for (const Case& c : cases) {
      for (const char* stream : {"", R"(,"stream":true)"}) {
        if (*stream && std::string_view(c.field) == "stream") continue;
        std::string body = StrCat(R"({"prompt":"a","messages":[{"role":"user","content":"a"}],")", c.field,
                                  "\":", c.value, stream, "}");
        test::HttpReply reply = test::Post(port(), path, body);
        EXPECT_EQ(reply.status, 400) << body;
        Json error = Json::parse(reply.body)["error"];
        EXPECT_EQ(error["type"], "invalid_request_error");
        EXPECT_EQ(error["param"], c.field) << body;
      }
    }
  }
  PostError(400, "/v1/completions", {{"prompt", "a"}, {"stop", std::vector<std::string>(1000, "x")}});
  PostError(400, "/v1/completions", {{"prompt", "a"}, {"stop", std::string(5000, 'x')}});
  Json error =
      PostError(400, "/v1/chat/completions", Chat("a", {{"stream_options", {{"include_usage", 1}}}}));
  EXPECT_EQ(error["param"], "stream_options.include_usage");
  EXPECT_TRUE(engine_->requests().empty());
  ExpectHealthy();
}

TEST_F(BadRequestApi, MissingAndEmptyInput) {
  EXPECT_EQ(PostError(400, "/v1/chat/completions", Json::object())["param"], "messages");
  for (const Json& messages : {Json::array(), Json::object(), Json("x"), Json(1)})
    EXPECT_EQ(PostError(400, "/v1/chat/completions", {{"messages", messages}})["param"], "messages");
  EXPECT_EQ(PostError(400, "/v1/completions", Json::object())["param"], "prompt");
  for (const Json& prompt : {Json(""), Json::array()})
    EXPECT_EQ(PostError(400, "/v1/completions", {{"prompt", prompt}})["param"], "prompt") << prompt;
  for (const Json& prompt : {Json::array({""}), Json::array({Json::array()})})
    EXPECT_EQ(PostError(400, "/v1/completions", {{"prompt", prompt}})["param"], "prompt[0]") << prompt;
  EXPECT_EQ(PostError(400, "/v1/completions", {{"prompt", {"a", ""}}})["param"], "prompt[1]");
  EXPECT_EQ(PostError(400, "/generate", {{"text", {"a", "b", ""}}})["param"], "text[2]");
  PostError(400, "/v1/completions", {{"prompt", ""}, {"echo", true}, {"max_tokens", 0}});
  EXPECT_EQ(PostError(400, "/generate", Json::object())["param"], "text");
  EXPECT_TRUE(engine_->requests().empty());
  // A message without text is fine: the format itself gives the tokens.
  PostOk("/v1/chat/completions", Chat(""));
  PostOk("/v1/chat/completions", Chat(" "));
}

TEST_F(BadRequestApi, BodiesThatAreNotTheJsonWeWant) {
  const std::string bodies[] = {
      "",
      " ",
      "x",
      "{",
      "}",
      "[]",
      "5",
      "\"s\"",
      "null",
      "true",
      "{}{}",
      R"({"prompt":})",
      R"({"prompt":"a",})",
      R"({'prompt':'a'})",
      R"({"prompt":"a","temperature":NaN})",
      R"({"prompt":"a","temperature":Infinity})",
      R"({"prompt":"a","temperature":1e999})",
      R"({"prompt":"\ud800"})",
      R"({"prompt":"\udc00\ud800"})",
      R"({"prompt":"\x"})",
      "{\"prompt\":\"a\nb\"}",
      std::string("{\"prompt\":\"a\0b\"}", 16),
      "{\"prompt\":\"\xff\xfe\"}",
      "{\"prompt\":\"\xc0\xaf\"}",
      "{\"prompt\":\"\xed\xa0\x80\"}",
      "\xef\xbb\xbf",
      "\xff\xfe{\x00}\x00",
      "{\"prompt\":\"a\",\"user\":\"\xff\"}",
      R"({"prompt":"a","user":"\ud800"})",
      R"({"prompt":"a","stop":"\ud800"})",
      std::string(100000, '['),
      std::string(100000, '{'),
      "{\"prompt\":\"a\",\"x\":" + std::string(70, '[') + std::string(70, ']') + "}",
  };
  for (const std::string& body : bodies) {
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/generate"}) {
      test::HttpReply reply = test::Post(port(), path, body);
      EXPECT_EQ(reply.status, 400) << path << " " << body.substr(0, 80);
      EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "invalid_request_error");
    }
  }
  Json error = Json::parse(test::Post(port(), "/generate", "{\"text\":\"\xff\"}").body)["error"];
  EXPECT_EQ(error["message"], "the request body is not valid UTF-8");
  ExpectHealthy();
}

TEST_F(BadRequestApi, UnusualButRightText) {
  auto prompt = [&](const char* literal) {
    EXPECT_EQ(Status("/v1/completions", StrCat(R"({"prompt":)", literal, "}")), 200) << literal;
    return text::Decode(TinyTokenizer(), engine_->last_request().prompt, false);
  };
  EXPECT_EQ(prompt(R"("\ud83d\ude00")"), "😀");
  EXPECT_EQ(prompt(R"("a\u0000b")"), std::string("a\0b", 3));
  EXPECT_EQ(prompt(R"("\uffff\ufffe")"), "\xEF\xBF\xBF\xEF\xBF\xBE");
  Json odd = Chat(std::string("a\0b", 3), {{"user", std::string("u\0", 2)}, {"stop", std::string("\0", 1)}});
  PostOk("/v1/chat/completions", odd);
  // Repeated fields do no harm, nor do absent ones.
  EXPECT_EQ(Status("/v1/completions", R"({"prompt":"a","prompt":"b","best":null})"), 200);
}

// Each of a list of prompts has its name in errors, wherever they come from.
TEST_F(BadRequestApi, AnErrorSaysWhichPromptOfAList) {
  const int64_t outside = TinyTokenizer().vocab_size();
  Json error = PostError(400, "/v1/completions",
                         {{"prompt", Json::array({Json::array({1}), Json::array({2, outside})})}, {"n", 2}});
  EXPECT_EQ(error["param"], "prompt[1]");
  EXPECT_EQ(error["message"].get<std::string>().rfind("prompt[1]: token id ", 0), 0u) << error;
  error = PostError(400, "/generate", {{"input_ids", Json::array({Json::array({outside})})}});
  EXPECT_EQ(error["param"], "input_ids[0]");
  error = PostError(400, "/v1/completions", {{"prompt", Json::array({Json::array({1}), Json::array({-1})})}});
  EXPECT_EQ(error["param"], "prompt[1]");
  error = PostError(400, "/v1/completions", {{"prompt", {"a", std::string(20000, 'x')}}});
  EXPECT_EQ(error["param"], "prompt[1]");
  error = PostError(400, "/v1/completions", {{"prompt", {"a", "b c d e f"}}, {"max_tokens", 4095}});
  EXPECT_EQ(error["param"], "max_tokens");
  EXPECT_NE(error["message"].get<std::string>().find("tokens in prompt[1] plus"), std::string::npos) << error;
  script_ = {.tokens = {}, .finish = engine::FinishReason::kError, .error = InternalError("not finite")};
  error = PostError(500, "/generate", {{"text", {"a"}}});
  EXPECT_EQ(error["message"], "text[0]: not finite");
  error = PostError(500, "/generate", {{"text", "a"}});
  EXPECT_EQ(error["message"], "not finite");
}

TEST_F(BadRequestApi, CostlyBodiesAreRefused) {
  std::string members = "{\"prompt\":\"a\",\"x\":{";
  for (int i = 0; i < 2000; ++i) members += StrCat("\"", i, "\":1,");
  EXPECT_EQ(Status("/v1/completions", members + "\"z\":1}}"), 400);
  std::string values = "{\"prompt\":\"a\",\"x\":[";
  for (int i = 0; i < 5'000'000; ++i) values += "1,";
  EXPECT_EQ(Status("/v1/completions", values + "1]}"), 400);
  Restart({.http = {.max_body_bytes = 1 << 20}});
  test::HttpReply reply =
      test::Post(port(), "/v1/completions", Json{{"prompt", std::string(2 << 20, 'a')}}.dump());
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "invalid_request_error");
  ExpectHealthy();
}

TEST_F(BadRequestApi, MutatedBodiesNeverFailTheServer) {
  const std::string seeds[] = {
      Chat("How are you?", {{"temperature", 0.5},
                            {"stop", {"a", "b"}},
                            {"n", 2},
                            {"logprobs", true},
                            {"top_logprobs", 2},
                            {"stream", true},
                            {"stream_options", {{"include_usage", true}}},
                            {"max_tokens", 5}})
          .dump(),
      R"({"messages":[{"role":"system","content":[{"type":"text","text":"x"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"call_1","content":"1"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]})",
      R"({"prompt":["a",  "b"],"max_tokens":3,"echo":true,"logprobs":2,"seed":5,"suffix":null,"best_of":1})",
      R"({"prompt":[[1,2],[3]],"max_tokens":3,"stop_token_ids":[1,2],"top_k":3,"top_p":0.5})",
      R"({"text":["a","b"],"sampling_params":{"max_new_tokens":3,"stop":"x","n":2},"return_logprob":true,"logprob_start_len":0})",
  };
  const std::string pieces[] = {"null", "-1",   "1e999",   "\"\"", "[]",
                                "{}",   "true", "\\ud800", "\xff", ",",
                                ":",    "\"",   "0.0",     "[[",   "999999999999999999999"};
  const char* paths[] = {"/v1/chat/completions", "/v1/completions", "/generate"};
  std::mt19937 rng(7);
  int counts[6] = {};
  for (int i = 0; i < 500; ++i) {
    const size_t seed = rng() % std::size(seeds);
    std::string body = seeds[seed];
    for (unsigned k = 0, edits = rng() % 4; k < edits && !body.empty(); ++k) {
      size_t at = rng() % body.size();
      switch (rng() % 4) {
        case 0:
          body[at] = static_cast<char>(rng());
          break;
        case 1:
          body.erase(at, 1 + rng() % 8);
          break;
        case 2:
          body.insert(at, pieces[rng() % std::size(pieces)]);
          break;
        default: {
          size_t colon = body.find(':', at);
          if (colon != std::string::npos)
            body.replace(colon + 1, body.find_first_of(",}", colon) - colon - 1,
                         pieces[rng() % std::size(pieces)]);
        }
      }
    }
    // Mostly where it belongs.
    const size_t own = seed < 2 ? 0 : seed < 4 ? 1 : 2;
    int status = Status(paths[rng() % 4 == 0 ? rng() % std::size(paths) : own], body);
    EXPECT_TRUE(status == 200 || status == 400 || status == 404) << status << " " << body;
    ++counts[status / 100];
  }
  EXPECT_GT(counts[2], 10);
  EXPECT_GT(counts[4], 100);
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(test::Get(port(), "/health").status, 200);
  ExpectHealthy();
}

}  // namespace
}  // namespace perigee::server
