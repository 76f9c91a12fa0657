#include "server/api_fixture.h"

namespace perigee::server {
namespace {

constexpr const char* kPath = "/generate";

using GenerateApi = ApiTest;

TEST_F(GenerateApi, AnswerAndMetaInfo) {
  script_.cached_tokens = 2;
  Json reply = PostOk(kPath, {{"text", "Once"}, {"rid", "mine"}});
  auto ids = Ids("All is well.");
  ids.push_back(*script_.stop_token);
  EXPECT_EQ(reply["text"], "All is well.");
  EXPECT_EQ(reply["output_ids"], Json(ids));
  const Json& meta = reply["meta_info"];
  EXPECT_EQ(meta["id"], "mine");
  EXPECT_EQ(meta["finish_reason"], (Json{{"type", "stop"}, {"matched", *script_.stop_token}}));
  EXPECT_EQ(meta["prompt_tokens"], Ids("Once").size());
  EXPECT_EQ(meta["completion_tokens"], ids.size());
  EXPECT_EQ(meta["cached_tokens"], 2);
  EXPECT_GE(meta["e2e_latency"], 0.0);
  EXPECT_FALSE(meta.contains("output_token_logprobs"));
  EXPECT_EQ(engine_->last_request().sampling.max_new_tokens, 128);
}

TEST_F(GenerateApi, FinishReasons) {
  script_.finish = engine::FinishReason::kNone;
  Json params = {{"max_new_tokens", 5}};
  Json reply = PostOk(kPath, {{"text", "a"}, {"sampling_params", params}});
  EXPECT_EQ(reply["meta_info"]["finish_reason"], (Json{{"type", "length"}, {"length", 5}}));
  params["stop"] = "is";
  params["max_new_tokens"] = 50;
  reply = PostOk(kPath, {{"text", "a"}, {"sampling_params", params}});
  EXPECT_EQ(reply["text"], "All ");
  EXPECT_EQ(reply["meta_info"]["finish_reason"], (Json{{"type", "stop"}, {"matched", "is"}}));
}

TEST_F(GenerateApi, BatchesAndChoicesAreLists) {
  for (const Json& body : {Json{{"text", {"a", "b"}}}, Json{{"input_ids", {{1, 2}, {3}}}},
                           Json{{"text", "a"}, {"sampling_params", {{"n", 2}}}}}) {
    Json reply = PostOk(kPath, body);
    ASSERT_TRUE(reply.is_array());
    ASSERT_EQ(reply.size(), 2u);
    EXPECT_EQ(reply[1]["index"], 1);
    EXPECT_EQ(reply[1]["text"], "All is well.");
    EXPECT_NE(reply[0]["meta_info"]["id"], reply[1]["meta_info"]["id"]);
  }
  EXPECT_EQ(PostOk(kPath, {{"text", Json::array({"a"})}}).size(), 1u);
  PostOk(kPath, {{"input_ids", {4, 5}}});
  EXPECT_EQ(engine_->last_request().prompt, (std::vector<engine::TokenId>{4, 5}));
}

TEST_F(GenerateApi, StreamIsCumulative) {
  auto events = PostStream(kPath, {{"text", "a"}});
  std::string text;
  size_t tokens = 0;
  for (const Json& event : events) {
    std::string now = event["text"];
    EXPECT_EQ(now.substr(0, text.size()), text);
    EXPECT_GE(event["output_ids"].size(), tokens);
    text = now;
    tokens = event["output_ids"].size();
  }
  EXPECT_EQ(text, "All is well.");
  EXPECT_EQ(events.front()["meta_info"]["finish_reason"], nullptr);
  EXPECT_EQ(events.back()["meta_info"]["finish_reason"]["type"], "stop");
  EXPECT_EQ(events.back()["meta_info"]["completion_tokens"], tokens);

  std::string last[2];
  for (const Json& event : PostStream(kPath, {{"text", {"a", "b"}}}))
    last[event["index"].get<int>()] = event["text"];
  EXPECT_EQ(last[0], "All is well.");
  EXPECT_EQ(last[1], "All is well.");
}

TEST_F(GenerateApi, Logprobs) {
  script_.tokens = ByteIds("ok");
  Json body = {{"input_ids", ByteIds("abc")},
               {"return_logprob", true},
               {"top_logprobs_num", 2},
               {"logprob_start_len", 0},
               {"return_text_in_logprobs", true}};
  Json meta = PostOk(kPath, body)["meta_info"];
  auto a = ByteIds("abcok");
  EXPECT_EQ(meta["input_token_logprobs"],
            Json::array({Json{nullptr, a[0], "a"}, Json{-1.0, a[1], "b"}, Json{-2.0, a[2], "c"}}));
  ASSERT_EQ(meta["output_token_logprobs"].size(), 3u);  // the stop id too
  EXPECT_EQ(meta["output_token_logprobs"][0], (Json{-0.5, a[3], "o"}));
  EXPECT_EQ(meta["output_top_logprobs"][0].size(), 2u);
  EXPECT_EQ(meta["output_top_logprobs"][0][0], (Json{-0.5, a[3], "o"}));

  meta = PostOk(kPath, {{"input_ids", ByteIds("abc")}, {"return_logprob", true}})["meta_info"];
  EXPECT_FALSE(meta.contains("input_token_logprobs"));
  EXPECT_EQ(meta["output_token_logprobs"][0], (Json{-0.5, a[3], nullptr}));
}

TEST_F(GenerateApi, SpecialTokensAsAsked) {
  Answer("<|im_user|>x");
  EXPECT_EQ(PostOk(kPath, {{"text", "a"}})["text"], "x");
  EXPECT_EQ(PostOk(kPath, {{"text", "a"}, {"sampling_params", {{"skip_special_tokens", false}}}})["text"],
            "<|im_user|>x");
  PostOk(kPath, {{"text", "<|im_end|>"}});
  EXPECT_EQ(engine_->last_request().prompt, Ids("<|im_end|>"));
  PostOk(kPath, {{"text", "<|im_end|>"}, {"allow_special_tokens", false}});
  EXPECT_EQ(engine_->last_request().prompt, Ids("<|im_end|>", false));
}

TEST_F(GenerateApi, ErrorsUseTheUsersNames) {
  Restart({}, 50);
  Json error = PostError(400, kPath, {{"text", "a"}, {"sampling_params", {{"max_new_tokens", 50}}}});
  EXPECT_EQ(error["param"], "sampling_params.max_new_tokens");
  EXPECT_EQ(PostError(400, kPath, {{"text", ""}})["param"], "text");
  EXPECT_EQ(PostError(400, kPath, {{"input_ids", Json::array({Json::array()})}})["param"], "input_ids[0]");
}

}  // namespace
}  // namespace perigee::server
