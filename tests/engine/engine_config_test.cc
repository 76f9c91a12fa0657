#include "engine/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModelCosts kModel{.max_context = 1000, .ranks = {{.per_token = 100, .per_sequence = 5000}}};
constexpr Machine kMachine{
    .memory_bytes = 10'000'000, .available_bytes = 10'000'000, .cores = 6, .random = 77};

StatusOr<EngineConfig> Resolve(const EngineConfig& config, const ModelCosts& model, const Machine& machine) {
  PERIGEE_ASSIGN_OR_RETURN(Sized sized, DecideSizes(config, model, machine));
  PERIGEE_RETURN_IF_ERROR(CheckFits(config, sized, model, machine));
  EXPECT_LE(sized.memory.Total(), sized.memory.budget_bytes);
  return std::move(sized.config);
}

TEST(EngineConfigTest, FillsInTheDefaults) {
  const StatusOr<EngineConfig> config = Resolve({}, kModel, kMachine);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->context_length, 1000);
  EXPECT_EQ(config->max_running_requests, 64);
  EXPECT_EQ(config->chunked_prefill_size, 2048);
  EXPECT_EQ(config->threads, 6);
  EXPECT_EQ(config->seed, 77u);
  EXPECT_EQ(config->state_snapshots, 128);
  EXPECT_EQ(config->mem_fraction_static, 0.8);
  // 64 contexts of 16 blocks would fit 7,040,000 bytes: all of 8,000,000 less the states of 192 sequences.
  EXPECT_EQ(config->max_total_tokens, 1024 * 64);
}

TEST(EngineConfigTest, KeepsWhatWasGiven) {
  const EngineConfig given{.context_length = 500,
                           .max_running_requests = 3,
                           .max_total_tokens = 640,
                           .chunked_prefill_size = 100,
                           .threads = 2,
                           .seed = 9};
  const StatusOr<EngineConfig> config = Resolve(given, kModel, kMachine);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->context_length, 500);
  EXPECT_EQ(config->max_running_requests, 3);
  EXPECT_EQ(config->max_total_tokens, 640);
  EXPECT_EQ(config->chunked_prefill_size, 100);
  EXPECT_EQ(config->threads, 2);
  EXPECT_EQ(config->seed, 9u);
}

TEST(EngineConfigTest, ThePoolHoldsNoMoreThanAllRequestsAndAtLeastOne) {
  const StatusOr<EngineConfig> few = Resolve({.max_running_requests = 2}, kModel, kMachine);
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(few->max_total_tokens, 2 * 1024);
  // 120,000 bytes hold one context, one state and 2 snapshots, and not two contexts.
  const StatusOr<EngineConfig> tight = Resolve(
      {.max_running_requests = 1}, kModel, {.memory_bytes = 150'000, .available_bytes = 150'000, .cores = 1});
  ASSERT_TRUE(tight.ok()) << tight.status().message();
  EXPECT_EQ(tight->max_total_tokens, 1024);
}

TEST(EngineConfigTest, PoolTokensAreWholeBlocks) {
  const StatusOr<EngineConfig> config = Resolve({.max_total_tokens = 100}, kModel, kMachine);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->max_total_tokens, 128);
  EXPECT_EQ(config->context_length, 1000) << "the pool is no context length";
}

TEST(EngineConfigTest, ErrorsNameFlagValueAndWhatIsAccepted) {
  const auto message = [](const EngineConfig& config) {
    const StatusOr<EngineConfig> resolved = Resolve(config, kModel, kMachine);
    return resolved.ok() ? "accepted" : resolved.status().message();
  };
  EXPECT_THAT(message({.context_length = -5}), AllOf(HasSubstr("--context-length"), HasSubstr("-5")));
  EXPECT_THAT(message({.context_length = 1001}),
              AllOf(HasSubstr("--context-length 1001"), HasSubstr("1000")));
  EXPECT_EQ(message({.context_length = 1000}), "accepted");
  EXPECT_THAT(message({.max_running_requests = -1}),
              AllOf(HasSubstr("--max-running-requests -1"), HasSubstr("from 1 to 65536")));
  EXPECT_THAT(message({.max_running_requests = 65537}), HasSubstr("--max-running-requests"));
  EXPECT_THAT(message({.max_total_tokens = -64}), HasSubstr("--max-total-tokens -64"));
  EXPECT_THAT(message({.chunked_prefill_size = -1}), HasSubstr("--chunked-prefill-size -1"));
  EXPECT_THAT(message({.threads = 1025}), AllOf(HasSubstr("--threads 1025"), HasSubstr("1024")));
  EXPECT_THAT(message({.context_length = 200, .max_total_tokens = 100}),
              AllOf(HasSubstr("--max-total-tokens 100"), HasSubstr("--context-length 200")));
}

TEST(EngineConfigTest, ChecksWithoutTheModelWhatItCan) {
  EXPECT_TRUE(CheckConfig({}).ok());
  EXPECT_TRUE(CheckConfig({.context_length = 1 << 30}).ok());
  EXPECT_EQ(CheckConfig({.threads = -1}).code(), StatusCode::kUsage);
}

TEST(EngineConfigTest, RefusesPoolsBeyondTheMemory) {
  const StatusOr<EngineConfig> latents = Resolve({.max_total_tokens = 200'000}, kModel, kMachine);
  ASSERT_FALSE(latents.ok());
  EXPECT_EQ(latents.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(latents.status().message(), HasSubstr("--max-total-tokens"));
  const StatusOr<EngineConfig> states = Resolve({.max_running_requests = 2001}, kModel, kMachine);
  ASSERT_FALSE(states.ok());
  EXPECT_EQ(states.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace perigee::engine
