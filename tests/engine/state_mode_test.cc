// The engine with KDA's state passed between ranks: prompts that are found in the prefix cache, and steps
// whose mode the planner chooses.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/check.h"
#include "engine/engine_testing.h"

namespace perigee::engine {
namespace {

EngineConfig TinyConfig(int cp) {
  EngineConfig config;
  config.model_path = PERIGEE_MODELS "/tiny-kimi-linear";
  config.context_length = 1024;
  config.max_running_requests = 4;
  config.chunked_prefill_size = 256;
  config.threads = 2;
  config.parallel.tp = config.parallel.attn_cp = cp;
  config.parallel.enable_prefill_cp = cp > 1;
  config.parallel.cp_strategy = "zigzag";
  return config;
}

std::unique_ptr<Engine> Start(const EngineConfig& config) {
  StatusOr<std::unique_ptr<Engine>> engine = StartEngine(config);
  PERIGEE_CHECK_MSG(engine.ok(), engine.status().message());
  return std::move(engine).value();
}

// A shared beginning of 500 tokens, then the request's own.
Request Question(int own) {
  Request request;
  for (int i = 0; i < 500 + 40 * own; ++i) request.prompt.push_back((i * i + 31 * i + i / 500 * own) % 1790);
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = 8;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = true;
  return request;
}

TEST(StateModeEngine, AnswersOfCachedPromptsStayClose) {
  const std::unique_ptr<Engine> one = Start(TinyConfig(1));
  EngineConfig config = TinyConfig(4);
  config.parallel.cp_kda_mode = "state";
  const std::unique_ptr<Engine> state = Start(config);
  for (const int own : {0, 0, 1, 2, 1}) {
    const Answer expected = Ask(*one, Question(own)), actual = Ask(*state, Question(own));
    EXPECT_EQ(actual.cached_tokens, expected.cached_tokens);
    ASSERT_EQ(actual.tokens.size(), expected.tokens.size());
    for (size_t i = 0; i < actual.tokens.size(); ++i) {
      EXPECT_EQ(actual.tokens[i].id, expected.tokens[i].id);
      EXPECT_NEAR(actual.tokens[i].logprob, expected.tokens[i].logprob, 5e-4);
    }
  }
  // Snapshots were found, and every prompt ran in the mode.
  EXPECT_GT(state->stats().prefix_hits, 0u);
  const ModeSteps steps = state->stats().steps_by_mode;
  EXPECT_GT(steps.state, 0u);
  EXPECT_EQ(steps.tp + steps.head + steps.replicated, 0u);
}

TEST(StateModeEngine, AutoCountsWhatItChose) {
  EngineConfig config = TinyConfig(4);
  config.parallel.deterministic = false;
  config.parallel.latency_us = 1e6;  // all but calls is nothing: tp has the fewest
  config.parallel.link_gbps = config.parallel.tflops = 1e9;
  const std::unique_ptr<Engine> slow_calls = Start(config);
  Ask(*slow_calls, Question(0));
  EXPECT_GT(slow_calls->stats().steps_by_mode.tp, 0u);
  EXPECT_EQ(slow_calls->stats().steps_by_mode.head + slow_calls->stats().steps_by_mode.state, 0u);
  config.parallel.cp_kda_mode = "head";
  const std::unique_ptr<Engine> head = Start(config);
  Ask(*head, Question(0));
  EXPECT_EQ(head->stats().steps_by_mode.head, slow_calls->stats().steps_by_mode.tp);
  EXPECT_EQ(head->stats().steps_by_mode.tp, 0u);
}

}  // namespace
}  // namespace perigee::engine
