#include "engine/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace perigee::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModelInfo kInfo{.vocab_size = 50, .context_length = 100, .max_total_tokens = 128};

Request Prompt(int64_t tokens, int64_t max_new_tokens) {
  Request request;
  request.prompt.assign(static_cast<size_t>(tokens), 3);
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

std::string Message(const Request& request, const ModelInfo& info = kInfo) {
  const Status status = CheckRequest(request, info);
  if (status.ok()) return "ok";
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return status.message();
}

TEST(RequestCheckTest, GridAroundTheContextLength) {
  EXPECT_EQ(Message(Prompt(98, 0)), "ok");
  EXPECT_EQ(Message(Prompt(98, 1)), "ok");
  EXPECT_EQ(Message(Prompt(98, 2)), "ok");
  EXPECT_THAT(Message(Prompt(98, 3)),
              AllOf(HasSubstr("98"), HasSubstr("3"), HasSubstr("100"), HasSubstr("at most 2")));
  EXPECT_EQ(Message(Prompt(99, 0)), "ok");
  EXPECT_EQ(Message(Prompt(99, 1)), "ok");
  EXPECT_THAT(Message(Prompt(99, 2)), HasSubstr("at most 1"));
  for (const int64_t length : {100, 101, 1000}) {
    for (const int64_t answer : {0, 1}) {
      EXPECT_THAT(Message(Prompt(length, answer)),
                  AllOf(HasSubstr(std::to_string(length) + " tokens"), HasSubstr("context length is 100")));
    }
  }
  EXPECT_THAT(Message(Prompt(5, std::numeric_limits<int64_t>::max())), HasSubstr("at most 95"));
}

TEST(RequestCheckTest, RefusesWhatThePoolCannotHold) {
  const ModelInfo small{.vocab_size = 50, .context_length = 100, .max_total_tokens = 64};
  EXPECT_EQ(Message(Prompt(60, 4), small), "ok");
  EXPECT_THAT(Message(Prompt(60, 5), small), AllOf(HasSubstr("60"), HasSubstr("5"), HasSubstr("pool of 64")));
  EXPECT_THAT(Message(Prompt(65, 0), small), HasSubstr("pool of 64"));
}

TEST(RequestCheckTest, RefusesEmptyPromptsAndForeignIds) {
  EXPECT_THAT(Message(Prompt(0, 1)), HasSubstr("empty"));
  Request request = Prompt(3, 1);
  request.prompt[2] = 50;
  EXPECT_THAT(Message(request), AllOf(HasSubstr("prompt token 2 is 50"), HasSubstr("0 to 49")));
  request.prompt[2] = -1;
  EXPECT_THAT(Message(request), HasSubstr("-1"));
  request = Prompt(3, 1);
  request.sampling.stop_token_ids = {4, 99};
  EXPECT_THAT(Message(request), HasSubstr("stop token 1 is 99"));
}

TEST(RequestCheckTest, RefusesSamplingParametersOutOfRange) {
  const auto message = [](auto change) {
    Request request = Prompt(3, 1);
    change(request.sampling);
    return Message(request);
  };
  EXPECT_THAT(message([](SamplingParams& s) { s.temperature = -0.5f; }), HasSubstr("temperature -0.5"));
  EXPECT_THAT(message([](SamplingParams& s) { s.temperature = NAN; }), HasSubstr("temperature"));
  EXPECT_THAT(message([](SamplingParams& s) { s.temperature = INFINITY; }), HasSubstr("temperature"));
  EXPECT_EQ(message([](SamplingParams& s) { s.temperature = 0; }), "ok");
  EXPECT_THAT(message([](SamplingParams& s) { s.top_p = 0; }), HasSubstr("top_p 0"));
  EXPECT_THAT(message([](SamplingParams& s) { s.top_p = 1.5f; }), HasSubstr("top_p 1.5"));
  EXPECT_THAT(message([](SamplingParams& s) { s.top_p = NAN; }), HasSubstr("top_p"));
  EXPECT_THAT(message([](SamplingParams& s) { s.top_k = -1; }), HasSubstr("top_k -1"));
  EXPECT_THAT(message([](SamplingParams& s) { s.choice = -1; }), HasSubstr("choice -1"));
  EXPECT_THAT(message([](SamplingParams& s) { s.max_new_tokens = -186; }), HasSubstr("max_new_tokens -186"));
  EXPECT_THAT(message([](SamplingParams& s) { s.top_logprobs = 21; }),
              AllOf(HasSubstr("top_logprobs 21"), HasSubstr("20")));
  EXPECT_EQ(message([](SamplingParams& s) { s.top_logprobs = 20; }), "ok");
}

}  // namespace
}  // namespace perigee::engine
