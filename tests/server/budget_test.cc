#include "server/budget.h"

#include <gtest/gtest.h>

namespace perigee::server {
namespace {

constexpr int64_t kContext = 100;
constexpr int64_t kPool = 192;

std::optional<ApiError> Decide(int64_t prompt, std::optional<int64_t> max_tokens,
                               std::optional<int64_t> default_tokens, int64_t& out) {
  return DecideBudget({.prompt_tokens = prompt,
                       .context_length = kContext,
                       .pool_tokens = kPool,
                       .max_tokens = max_tokens,
                       .default_tokens = default_tokens,
                       .prompt_field = "messages",
                       .max_tokens_field = "max_completion_tokens"},
                      out);
}

TEST(Budget, AbsentMeansTheDefaultOrAllThatIsLeft) {
  int64_t n = -1;
  EXPECT_FALSE(Decide(40, std::nullopt, std::nullopt, n));
  EXPECT_EQ(n, 60);
  EXPECT_FALSE(Decide(40, std::nullopt, 16, n));
  EXPECT_EQ(n, 16);
  EXPECT_FALSE(Decide(95, std::nullopt, 16, n));
  EXPECT_EQ(n, 5);
  EXPECT_FALSE(Decide(99, std::nullopt, std::nullopt, n));
  EXPECT_EQ(n, 1);
}

TEST(Budget, TheSumMayFillTheContextExactly) {
  int64_t n = -1;
  EXPECT_FALSE(Decide(40, 60, std::nullopt, n));
  EXPECT_EQ(n, 60);
  EXPECT_FALSE(Decide(40, 0, std::nullopt, n));
  EXPECT_EQ(n, 0);
  auto error = Decide(40, 61, std::nullopt, n);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->param, "max_completion_tokens");
  EXPECT_EQ(
      error->message,
      "40 tokens in messages plus max_completion_tokens of 61 are more than the context of 100 tokens; at "
      "most 60 can be generated");
}

TEST(Budget, APromptThatFillsTheContextNamesBothNumbers) {
  int64_t n = -1;
  for (int64_t prompt : {100, 101, 1000}) {
    auto error = Decide(prompt, std::nullopt, std::nullopt, n);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, "context_length_exceeded");
    EXPECT_NE(error->message.find(std::to_string(prompt) + " tokens"), std::string::npos);
    EXPECT_NE(error->message.find("100 tokens"), std::string::npos);
  }
}

TEST(Budget, APoolThatIsLessThanTheContextIsNamedAsSuch) {
  int64_t n = -1;
  BudgetRequest request{.prompt_tokens = 40,
                        .context_length = 100,
                        .pool_tokens = 64,
                        .max_tokens = 24,
                        .default_tokens = std::nullopt,
                        .prompt_field = "prompt",
                        .max_tokens_field = "max_tokens"};
  EXPECT_FALSE(DecideBudget(request, n));
  EXPECT_EQ(n, 24);
  request.max_tokens = std::nullopt;
  EXPECT_FALSE(DecideBudget(request, n));
  EXPECT_EQ(n, 24);
  request.max_tokens = 25;
  auto error = DecideBudget(request, n);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message,
            "40 tokens in prompt plus max_tokens of 25 are more than the latent pool of 64 tokens "
            "(--max-total-tokens); at most 24 can be generated");
  request.prompt_tokens = 64;
  error = DecideBudget(request, n);
  ASSERT_TRUE(error);
  EXPECT_EQ(
      error->message,
      "prompt has 64 tokens, but the latent pool of 64 tokens (--max-total-tokens) has to hold prompt and "
      "answer");
}

TEST(Budget, NoTokenAtAllIsRefused) {
  int64_t n = -1;
  ASSERT_TRUE(Decide(0, 5, std::nullopt, n));
}

}  // namespace
}  // namespace perigee::server
