#include <gtest/gtest.h>

#include "server/api_fixture.h"
#include "server/native/generate_request.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"

namespace perigee::server {
namespace {

ChatRequest ParseChat(const Json& body) {
  ChatRequest request;
  auto error = ParseChatRequest(body.dump(), request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

std::string ChatErrorField(const Json& body) {
  ChatRequest request;
  auto error = ParseChatRequest(body.dump(), request);
  return error ? error->param : "accepted";
}

CompletionRequest ParseCompletion(const Json& body) {
  CompletionRequest request;
  auto error = ParseCompletionRequest(body.dump(), request);
  EXPECT_FALSE(error) << error->message;
  return request;
}

TEST(ChatRequest, Defaults) {
  ChatRequest r = ParseChat(Chat("hi"));
  EXPECT_EQ(r.generation.sampling.temperature, 1.0f);
  EXPECT_EQ(r.generation.sampling.top_p, 1.0f);
  EXPECT_EQ(r.generation.sampling.top_k, 0);
  EXPECT_FALSE(r.generation.sampling.seed);
  EXPECT_FALSE(r.generation.max_tokens);
  EXPECT_EQ(r.generation.n, 1);
  EXPECT_TRUE(r.generation.skip_special_tokens);
  EXPECT_FALSE(r.generation.sampling.ignore_eos);
  EXPECT_FALSE(r.generation.stream);
  EXPECT_FALSE(r.include_usage);
  EXPECT_TRUE(r.prompt.add_generation_prompt);
  EXPECT_TRUE(r.tools.names.empty());
}

TEST(ChatRequest, NullIsAbsent) {
  Json body = Chat("hi");
  for (const char* field :
       {"model", "temperature", "top_p", "top_k", "seed", "n", "stop", "max_tokens", "logprobs",
        "top_logprobs", "stream", "stream_options", "tools", "tool_choice", "response_format", "logit_bias",
        "presence_penalty", "stop_token_ids", "parallel_tool_calls"})
    body[field] = nullptr;
  EXPECT_EQ(ParseChat(body).generation.sampling.temperature, 1.0f);
}

TEST(ChatRequest, EveryFieldArrives) {
  ChatRequest r = ParseChat(Chat("hi", {{"model", "m"},
                                        {"temperature", 0.25},
                                        {"top_p", 0.5},
                                        {"top_k", 7},
                                        {"seed", -3},
                                        {"n", 2},
                                        {"stop", {"a", "", "b"}},
                                        {"stop_token_ids", {5, 6}},
                                        {"ignore_eos", true},
                                        {"skip_special_tokens", false},
                                        {"max_tokens", 9},
                                        {"logprobs", true},
                                        {"top_logprobs", 3},
                                        {"stream", true},
                                        {"stream_options", {{"include_usage", true}}},
                                        {"user", "u"}}));
  const engine::SamplingParams& s = r.generation.sampling;
  EXPECT_EQ(s.temperature, 0.25f);
  EXPECT_EQ(s.top_p, 0.5f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(r.generation.n, 2);
  EXPECT_EQ(r.generation.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.stop_token_ids, (std::vector<engine::TokenId>{5, 6}));
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_FALSE(r.generation.skip_special_tokens);
  EXPECT_EQ(r.generation.max_tokens, 9);
  EXPECT_TRUE(s.logprobs);
  EXPECT_EQ(s.top_logprobs, 3);
  EXPECT_TRUE(r.generation.stream);
  EXPECT_TRUE(r.include_usage);
}

TEST(ChatRequest, TheNewNameOfMaxTokensWins) {
  ChatRequest r = ParseChat(Chat("hi", {{"max_tokens", 9}, {"max_completion_tokens", 4}}));
  EXPECT_EQ(r.generation.max_tokens, 4);
  EXPECT_EQ(r.max_tokens_field, "max_completion_tokens");
}

TEST(ChatRequest, ContentForms) {
  Json part = {{"type", "text"}, {"text", "a"}};
  Json messages = Json::array({UserMessage("x"),
                               {{"role", "assistant"}, {"content", ""}},
                               {{"role", "assistant"}, {"content", nullptr}},
                               {{"role", "assistant"}},
                               {{"role", "assistant"}, {"content", Json::array()}},
                               {{"role", "user"}, {"name", "mira"}, {"content", Json::array({part, part})}}});
  auto parsed = ParseChat({{"messages", messages}}).prompt.messages;
  ASSERT_EQ(parsed.size(), 6u);
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(parsed[i].content.value_or(""), "");
  EXPECT_EQ(parsed[5].content, "aa");
  EXPECT_EQ(parsed[5].name, "mira");
}

TEST(ChatRequest, BadMessagesNameTheirPlace) {
  auto with = [](Json message) {
    return Json{{"messages", Json::array({UserMessage("x"), std::move(message)})}};
  };
  EXPECT_EQ(ChatErrorField(with("text")), "messages[1]");
  EXPECT_EQ(ChatErrorField(with(Json::object())), "messages[1].role");
  EXPECT_EQ(ChatErrorField(with({{"role", "robot"}})), "messages[1].role");
  EXPECT_EQ(ChatErrorField(with({{"role", 3}})), "messages[1].role");
  EXPECT_EQ(ChatErrorField(with({{"role", "user"}, {"content", 3}})), "messages[1].content");
  EXPECT_EQ(ChatErrorField(with({{"role", "user"}, {"name", 3}})), "messages[1].name");
  Json image = {{"type", "image_url"}, {"image_url", {{"url", "data:"}}}};
  EXPECT_EQ(ChatErrorField(with({{"role", "user"}, {"content", Json::array({image})}})),
            "messages[1].content[0].type");
  EXPECT_EQ(ChatErrorField(with({{"role", "user"}, {"content", Json::array({{{"type", "text"}}})}})),
            "messages[1].content[0].text");
  EXPECT_EQ(ChatErrorField(with({{"role", "tool"}, {"content", "x"}})), "messages[1].tool_call_id");
  EXPECT_EQ(ChatErrorField(with({{"role", "assistant"}, {"tool_calls", {1}}})), "messages[1].tool_calls[0]");
  EXPECT_EQ(ChatErrorField(with({{"role", "assistant"}, {"tool_calls", {{{"id", "x"}}}}})),
            "messages[1].tool_calls[0].function");
  EXPECT_EQ(ChatErrorField(with({{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", ""}}}}}}})),
            "messages[1].tool_calls[0].function.name");
}

TEST(ChatRequest, ToolsGoToTheTemplateAndNoneLeavesThemOut) {
  Json tools = Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}}])");
  ChatRequest r = ParseChat(Chat("hi", {{"tools", tools}}));
  EXPECT_EQ(Json::parse(r.prompt.tools_json), tools);
  EXPECT_EQ(r.tools.names, (std::vector<std::string>{"f"}));
  r = ParseChat(Chat("hi", {{"tools", tools}, {"tool_choice", "none"}}));
  EXPECT_EQ(r.prompt.tools_json, "");
  EXPECT_TRUE(r.tools.names.empty());
  EXPECT_EQ(ParseChat(Chat("hi", {{"tools", Json::array()}})).prompt.tools_json, "");

  EXPECT_EQ(ChatErrorField(Chat("hi", {{"tools", tools}, {"tool_choice", "required"}})), "tool_choice");
  Json named = {{"type", "function"}, {"function", {{"name", "f"}}}};
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"tools", tools}, {"tool_choice", named}})), "tool_choice");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"tools", "f"}})), "tools");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"tools", {3}}})), "tools[0]");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"tools", {{{"type", "retrieval"}}}}})), "tools[0].type");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"tools", {{{"type", "function"}}}}})), "tools[0].function");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"tools", {{{"type", "function"}, {"function", {{"name", 1}}}}}}})),
            "tools[0].function.name");
}

TEST(ChatRequest, HistoryArgumentsKeepTheirForm) {
  Json call = {
      {"id", "x"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", R"({"b": 1})"}}}};
  Json object_call = call;
  object_call["function"]["arguments"] = {{"b", 1}, {"a", 2}};
  Json body = {
      {"messages",
       Json::array({UserMessage("x"),
                    {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call, object_call}}}})}};
  auto calls = ParseChat(body).prompt.messages[1].tool_calls;
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].arguments, R"({"b": 1})");
  EXPECT_EQ(Json::parse(calls[1].arguments).dump(), R"({"b":1,"a":2})");
}

TEST(ChatRequest, ContinuationNeedsAnOpenAssistantMessage) {
  Json body = Chat("hi", {{"continue_final_message", true}});
  EXPECT_EQ(ChatErrorField(body), "continue_final_message");
  body["messages"].push_back({{"role", "assistant"}, {"content", "I"}});
  EXPECT_TRUE(ParseChat(body).continue_final_message);
  EXPECT_FALSE(ParseChat(body).prompt.add_generation_prompt);
  body["add_generation_prompt"] = true;
  EXPECT_EQ(ChatErrorField(body), "continue_final_message");
  EXPECT_FALSE(ParseChat(Chat("hi", {{"add_generation_prompt", false}})).prompt.add_generation_prompt);
}

TEST(Request, WhatWouldChangeTheAnswerIsRefusedByName) {
  struct Case {
    const char* field;
    Json refused;
    Json neutral;
  };
  const Case cases[] = {
      {"presence_penalty", 0.5, 0},
      {"frequency_penalty", -1, 0.0},
      {"repetition_penalty", 1.1, 1},
      {"min_p", 0.1, 0},
      {"min_tokens", 3, 0},
      {"logit_bias", {{"5", 100}}, Json::object()},
      {"logit_bias", "x", nullptr},
      {"response_format", {{"type", "json_object"}}, {{"type", "text"}}},
      {"response_format", "json", nullptr},
      {"guided_json", Json::object({{"type", "object"}}), nullptr},
      {"guided_regex", "a+", ""},
      {"guided_choice", {"a", "b"}, Json::array()},
      {"guided_grammar", "root", nullptr},
      {"grammar", "root", nullptr},
      {"regex", "a", nullptr},
      {"use_beam_search", true, false},
      {"include_stop_str_in_output", true, false},
      {"functions", {{{"name", "f"}}}, Json::array()},
      {"top_logprobs", 3, nullptr},
      {"presence_penalty", "x", 0},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ChatErrorField(Chat("hi", {{c.field, c.refused}})), c.field) << c.refused;
    EXPECT_EQ(ChatErrorField(Chat("hi", {{c.field, c.neutral}})), "accepted") << c.field;
  }
}

std::string FieldOf(const Json& body, decltype(ParseCompletionRequest)* parse) {
  CompletionRequest request;
  auto error = parse(body.dump(), request);
  return error ? error->param : "accepted";
}
std::string FieldOf(const Json& body, decltype(ParseGenerateRequest)* parse) {
  GenerateRequest request;
  auto error = parse(body.dump(), request);
  return error ? error->param : "accepted";
}

TEST(Request, WhatIsNotKnownIsRefusedByName) {
  for (const Json& value : {Json(true), Json(false), Json(0), Json("x"), Json::array(), Json::object()}) {
    EXPECT_EQ(ChatErrorField(Chat("hi", {{"reasoning_effort", value}})), "reasoning_effort") << value;
    EXPECT_EQ(FieldOf({{"prompt", "a"}, {"max_new_tokens", value}}, ParseCompletionRequest),
              "max_new_tokens");
    EXPECT_EQ(FieldOf({{"text", "a"}, {"max_new_tokens", value}}, ParseGenerateRequest), "max_new_tokens");
    EXPECT_EQ(FieldOf({{"text", "a"}, {"sampling_params", {{"max_tokens", value}}}}, ParseGenerateRequest),
              "sampling_params.max_tokens");
    EXPECT_EQ(ChatErrorField(Chat("hi", {{"stream_options", {{"every", value}}}})), "stream_options.every");
  }
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"reasoning_effort", nullptr}})), "accepted");
  // Within messages.
  const auto message = [](Json more) {
    Json m = UserMessage("a");
    m.update(more);
    return ChatErrorField({{"messages", Json::array({m})}});
  };
  EXPECT_EQ(message({{"partial", true}}), "messages[0].partial");
  EXPECT_EQ(message({{"partial", false}}), "accepted");
  EXPECT_EQ(message({{"weight", 1}}), "messages[0].weight");
  EXPECT_EQ(message({{"tool_calls", {1}}}), "messages[0].tool_calls");
  EXPECT_EQ(message({{"role", "assistant"}, {"reasoning_content", "hm"}}), "messages[0].reasoning_content");
  EXPECT_EQ(message({{"content", {{{"type", "text"}, {"text", "a"}, {"detail", "low"}}}}}),
            "messages[0].content[0].detail");
  Json call = {
      {"id", "x"}, {"type", "function"}, {"index", 0}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  EXPECT_EQ(message({{"role", "assistant"}, {"tool_calls", {call}}}), "accepted");
  call["function"]["result"] = 3;
  EXPECT_EQ(message({{"role", "assistant"}, {"tool_calls", {call}}}),
            "messages[0].tool_calls[0].function.result");
  // The name comes from outside.
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"a\nb\xC3\xA9", 1}})), "\"a\\x0ab\\xc3\\xa9\"");
  EXPECT_LT(ChatErrorField(Chat("hi", {{std::string(10000, 'x'), 1}})).size(), 100u);
}

TEST(Request, WhatCannotChangeTheAnswerIsAccepted) {
  const Json harmless = {{"user", "u"},
                         {"metadata", {{"a", "b"}}},
                         {"store", true},
                         {"service_tier", "auto"},
                         {"safety_identifier", "s"},
                         {"prompt_cache_key", "k"},
                         {"prediction", {{"type", "content"}, {"content", "x"}}},
                         {"request_id", "r"},
                         {"priority", 3},
                         {"cache_salt", "s"}};
  EXPECT_EQ(ChatErrorField(Chat("hi", harmless)), "accepted");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"modalities", {"text"}}})), "accepted");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"modalities", {"text", "audio"}}})), "modalities");
  EXPECT_EQ(ChatErrorField(Chat("hi", {{"stream_options", {{"include_obfuscation", false}}}})), "accepted");
  Json body = {{"prompt", "a"}};
  body.update(harmless);
  EXPECT_EQ(FieldOf(body, ParseCompletionRequest), "accepted");
  body.erase("prompt");
  body["text"] = "a";
  EXPECT_EQ(FieldOf(body, ParseGenerateRequest), "accepted");
  // A message as the official client gives it back.
  Json answer = {{"role", "assistant"},          {"content", "x"},   {"refusal", nullptr},
                 {"annotations", Json::array()}, {"audio", nullptr}, {"tool_calls", nullptr},
                 {"function_call", nullptr},     {"id", "m1"}};
  EXPECT_EQ(ChatErrorField({{"messages", Json::array({answer, UserMessage("b")})}}), "accepted");
}

TEST(Request, SmallestTopPSurvivesAsAFloat) {
  EXPECT_GT(ParseChat(Chat("hi", {{"top_p", 1e-60}})).generation.sampling.top_p, 0.0f);
  EXPECT_EQ(ParseChat(Chat("hi", {{"top_k", -1}})).generation.sampling.top_k, 0);
  EXPECT_EQ(ParseChat(Chat("hi", {{"max_tokens", 5.0}})).generation.max_tokens, 5);
}

TEST(CompletionRequest, PromptForms) {
  auto prompt = [](Json p) { return ParseCompletion({{"prompt", std::move(p)}}).prompt; };
  EXPECT_EQ(prompt("a").texts, (std::vector<std::string>{"a"}));
  EXPECT_FALSE(prompt("a").batch);
  EXPECT_TRUE(prompt("a").allow_special_tokens);
  EXPECT_EQ(prompt({"a", "b"}).texts, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(prompt({"a"}).batch);
  EXPECT_EQ(prompt({1, 2}).ids, (std::vector<std::vector<engine::TokenId>>{{1, 2}}));
  EXPECT_EQ(prompt(Json::array({Json::array({1}), Json::array({2, 3})})).ids,
            (std::vector<std::vector<engine::TokenId>>{{1}, {2, 3}}));
}

TEST(CompletionRequest, BadPrompts) {
  Json nested = Json::array({Json::array({1}), "a"});
  for (const Json& prompt :
       {Json(5), Json(true), Json::object(), Json::array(), Json({1, "a"}), Json({"a", 1}), nested,
        Json({1, -1}), Json({1.5}), Json({1e12}), Json({{{"a", 1}}}), Json({nullptr})}) {
    CompletionRequest request;
    auto error = ParseCompletionRequest(Json{{"prompt", prompt}}.dump(), request);
    ASSERT_TRUE(error) << prompt;
    EXPECT_EQ(error->param, "prompt") << prompt;
  }
}

TEST(CompletionRequest, LogprobsEchoAndBestOf) {
  CompletionRequest r = ParseCompletion({{"prompt", "a"}, {"logprobs", 0}, {"echo", true}, {"best_of", 1}});
  EXPECT_TRUE(r.generation.sampling.logprobs);
  EXPECT_EQ(r.generation.sampling.top_logprobs, 0);
  EXPECT_TRUE(r.generation.sampling.prompt_logprobs);
  EXPECT_FALSE(ParseCompletion({{"prompt", "a"}, {"echo", true}}).generation.sampling.prompt_logprobs);
  for (const auto& [field, value] : std::vector<std::pair<std::string, Json>>{
           {"best_of", 2}, {"logprobs", 21}, {"logprobs", true}, {"suffix", "x"}, {"echo", "yes"}}) {
    CompletionRequest request;
    auto error = ParseCompletionRequest(Json{{"prompt", "a"}, {field, value}}.dump(), request);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(error->param, field);
  }
}

TEST(CompletionRequest, TooManyAnswersAtOnce) {
  CompletionRequest request;
  Json prompts = Json::array();
  for (int i = 0; i < 512; ++i) prompts.push_back("a");
  EXPECT_FALSE(ParseCompletionRequest(Json{{"prompt", prompts}, {"n", 2}}.dump(), request));
  CompletionRequest larger;
  EXPECT_TRUE(ParseCompletionRequest(Json{{"prompt", prompts}, {"n", 3}}.dump(), larger));
}

TEST(GenerateRequest, FieldsAndNestedErrors) {
  GenerateRequest r;
  Json body = {{"text", "a"},
               {"rid", "r1"},
               {"sampling_params",
                {{"temperature", 0}, {"max_new_tokens", 3}, {"stop", "x"}, {"sampling_seed", 5}, {"n", 2}}},
               {"return_logprob", true},
               {"top_logprobs_num", 2},
               {"logprob_start_len", 1},
               {"return_text_in_logprobs", true},
               {"stream", true}};
  ASSERT_FALSE(ParseGenerateRequest(body.dump(), r));
  EXPECT_EQ(r.rid, "r1");
  EXPECT_EQ(r.generation.sampling.temperature, 0.0f);
  EXPECT_EQ(r.generation.max_tokens, 3);
  EXPECT_EQ(r.generation.stop, (std::vector<std::string>{"x"}));
  EXPECT_EQ(r.generation.sampling.seed, 5u);
  EXPECT_EQ(r.generation.n, 2);
  EXPECT_EQ(r.generation.sampling.top_logprobs, 2);
  EXPECT_EQ(r.logprob_start, 1);
  EXPECT_TRUE(r.generation.sampling.prompt_logprobs);
  EXPECT_TRUE(r.text_in_logprobs);

  auto field = [](const Json& b) {
    GenerateRequest request;
    auto error = ParseGenerateRequest(b.dump(), request);
    return error ? error->param : "accepted";
  };
  EXPECT_EQ(field({{"input_ids", {1, 2}}}), "accepted");
  EXPECT_EQ(field(Json::object()), "text");
  EXPECT_EQ(field({{"text", "a"}, {"input_ids", {1}}}), "input_ids");
  EXPECT_EQ(field({{"text", {1, 2}}}), "text");
  EXPECT_EQ(field({{"input_ids", "a"}}), "input_ids");
  EXPECT_EQ(field({{"text", "a"}, {"sampling_params", Json::array({1})}}), "sampling_params");
  EXPECT_EQ(field({{"text", "a"}, {"sampling_params", {{"temperature", -1}}}}),
            "sampling_params.temperature");
  EXPECT_EQ(field({{"text", "a"}, {"sampling_params", {{"regex", "a"}}}}), "sampling_params.regex");
  EXPECT_EQ(field({{"text", "a"}, {"image_data", "x"}}), "image_data");
}

}  // namespace
}  // namespace perigee::server
