#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

namespace perigee::engine {
namespace {

constexpr int64_t kPrompt = 5;

Request MakeRequest(const SamplingParams& sampling) {
  return {.prompt = std::vector<TokenId>(kPrompt, 1), .sampling = sampling};
}

// The first `count` tokens that a request gets from a flat distribution over 1000 tokens.
std::vector<TokenId> Draw(const Sampler& sampler, RequestId id, int64_t count) {
  const std::vector<float> logits(1000, 0.0f);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(sampler.Choose(id, kPrompt + i, logits, std::log(1000.0f)).id);
  }
  return tokens;
}

TEST(SamplerTest, SeedChoiceAndIndexDecideTheDraw) {
  Sampler sampler(1);
  sampler.Add(1, MakeRequest({.seed = 7}));
  sampler.Add(2, MakeRequest({.seed = 7}));
  sampler.Add(3, MakeRequest({.seed = 7, .choice = 1}));
  sampler.Add(4, MakeRequest({.seed = 8}));
  const std::vector<TokenId> first = Draw(sampler, 1, 20);
  EXPECT_EQ(Draw(sampler, 1, 20), first) << "no state between draws";
  EXPECT_EQ(Draw(sampler, 2, 20), first);
  EXPECT_NE(Draw(sampler, 3, 20), first);
  EXPECT_NE(Draw(sampler, 4, 20), first);
  EXPECT_GT(std::set<TokenId>(first.begin(), first.end()).size(), 10u);
}

TEST(SamplerTest, UnseededRequestsDifferAndFollowTheEngineSeed) {
  Sampler sampler(1), again(1), other(2);
  for (RequestId id = 1; id <= 8; ++id) {
    for (Sampler* s : {&sampler, &again, &other}) s->Add(id, MakeRequest({}));
  }
  std::set<std::vector<TokenId>> answers;
  for (RequestId id = 1; id <= 8; ++id) {
    answers.insert(Draw(sampler, id, 10));
    EXPECT_EQ(Draw(again, id, 10), Draw(sampler, id, 10));
    EXPECT_NE(Draw(other, id, 10), Draw(sampler, id, 10));
  }
  EXPECT_EQ(answers.size(), 8u);
}

TEST(SamplerTest, LogProbsAreOfTheUncutDistribution) {
  Sampler sampler(1);
  sampler.Add(
      1,
      MakeRequest({.temperature = 0.01f, .top_p = 1e-6f, .top_k = 1, .logprobs = true, .top_logprobs = 3}));
  sampler.Add(2, MakeRequest({.temperature = 0}));
  const std::vector<float> logits = {std::log(1.0f), std::log(5.0f), std::log(3.0f), std::log(1.0f)};
  const float lse = std::log(10.0f);
  const TokenOutput output = sampler.Choose(1, kPrompt, logits, lse);
  EXPECT_EQ(output.id, 1);
  EXPECT_NEAR(output.logprob, std::log(0.5), 1e-6);
  ASSERT_EQ(output.top.size(), 3u);
  EXPECT_EQ(output.top[0].id, 1);
  EXPECT_EQ(output.top[1].id, 2);
  EXPECT_NEAR(output.top[1].logprob, std::log(0.3), 1e-6);
  EXPECT_EQ(output.top[2].id, 0) << "ties to the lower id";

  const TokenOutput plain = sampler.Choose(2, kPrompt, logits, lse);
  EXPECT_EQ(plain.id, 1);
  EXPECT_EQ(plain.logprob, 0.0f);
  EXPECT_TRUE(plain.top.empty());
}

TEST(SamplerTest, LogProbsStayFinite) {
  EXPECT_EQ(LogProb(1.0f, 3.0f), -2.0f);
  EXPECT_TRUE(std::isfinite(LogProb(-std::numeric_limits<float>::infinity(), 0.0f)));
}

}  // namespace
}  // namespace perigee::engine
