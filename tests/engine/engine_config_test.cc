#include "engine/engine_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace perigee::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ModelLimits kModel{.max_context = 1000, .bytes_per_token = 100, .bytes_per_sequence = 5000};
constexpr Machine kMachine{.available_bytes = 10'000'000, .cores = 6, .random = 77};

TEST(EngineConfigTest, FillsInTheDefaults) {
  const StatusOr<EngineConfig> config = Resolve({}, kModel, kMachine);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->context_length, 1000);
  EXPECT_EQ(config->max_running_requests, 64);
  EXPECT_EQ(config->chunked_prefill_size, 2048);
  EXPECT_EQ(config->threads, 6);
  EXPECT_EQ(config->seed, 77u);
  // Half of the memory less 64 states: (5,000,000 - 320,000) / 6,400 = 731 blocks.
  EXPECT_EQ(config->max_total_tokens, 731 * 64);
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
  // 200,000 bytes: half holds less than one context, the whole holds it.
  const StatusOr<EngineConfig> tight =
      Resolve({.max_running_requests = 1}, kModel, {.available_bytes = 200'000, .cores = 1});
  ASSERT_TRUE(tight.ok()) << tight.status().message();
  EXPECT_EQ(tight->max_total_tokens, 1024);
}

TEST(EngineConfigTest, PoolTokensAreWholeBlocks) {
  const StatusOr<EngineConfig> config = Resolve({.max_total_tokens = 100}, kModel, kMachine);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->max_total_tokens, 128);
  EXPECT_EQ(config->context_length, 100) << "a longer request could never be served";
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

TEST(EngineConfigTest, ReadsThisMachine) {
  const Machine machine = ReadMachine();
  EXPECT_GT(machine.available_bytes, uint64_t{1} << 20);
  EXPECT_GE(machine.cores, 1);
  EXPECT_NE(machine.random, ReadMachine().random);
}

}  // namespace
}  // namespace perigee::engine
