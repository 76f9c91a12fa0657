#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"
#include "kernels/context.h"
#include "testing/fake_model.h"

namespace perigee::engine {
namespace {

using ::testing::HasSubstr;

std::vector<TokenId> Tokens(int64_t count, int salt = 0) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>((i * 31 + i * i * 7 + salt) % FakeModel::kVocab));
  }
  return tokens;
}

Request Greedy(int64_t prompt, int64_t max_new_tokens, int salt = 0) {
  return {.prompt = Tokens(prompt, salt), .sampling = {.temperature = 0, .max_new_tokens = max_new_tokens}};
}

// ln p of every token after every prefix of `tokens`, in double: row i belongs to tokens[0..i].
std::vector<std::vector<double>> ReferenceLogProbs(const std::vector<TokenId>& tokens) {
  const FakeModel model;
  const auto rows = static_cast<int64_t>(tokens.size());
  const int64_t blocks = rows / cache::kBlockTokens + 1;
  const model::CacheShape shape = model.cache_shape();
  cache::PagedKvCache kv(shape.kv_layers, blocks, shape.kv_width);
  cache::RecurrentStatePool states(shape.state_layers, 1, shape.recurrent_floats, shape.conv_floats);
  batch::BatchPlan plan;
  plan.spans.push_back({.tokens = tokens, .fresh_state = true, .prompt_logprobs = true});
  plan.spans[0].targets.assign(tokens.begin() + 1, tokens.end());
  for (int64_t b = 0; b < blocks; ++b) plan.spans[0].block_table.push_back(static_cast<int32_t>(b));
  std::vector<float> hidden(static_cast<size_t>(rows * model.hidden_size()));
  std::vector<float> logits(static_cast<size_t>(rows * FakeModel::kVocab));
  const MatrixF hidden_rows(hidden.data(), rows, model.hidden_size());
  const MatrixF logit_rows(logits.data(), rows, FakeModel::kVocab);
  const batch::ForwardBatch batch = batch::MakeForwardBatch(plan);
  EXPECT_TRUE(model.Forward({}, batch, {}, {}, {.kv = &kv, .states = &states}, hidden_rows).ok());
  model.Logits({}, hidden_rows, logit_rows);
  std::vector<std::vector<double>> logprobs;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t v = 0; v < FakeModel::kVocab; ++v) sum += std::exp(double{logit_rows.Row(r)[v]});
    logprobs.emplace_back();
    for (int64_t v = 0; v < FakeModel::kVocab; ++v) {
      logprobs.back().push_back(double{logit_rows.Row(r)[v]} - std::log(sum));
    }
  }
  return logprobs;
}

TEST(EngineTest, GreedyTakesTheMostProbableTokenAndSaysItsLogProb) {
  const auto engine = MakeFakeEngine(FakeConfig());
  Request request = Greedy(20, 1);
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 20;
  const Answer answer = Ask(*engine, request);
  const std::vector<double> expected = ReferenceLogProbs(request.prompt).back();
  const auto best =
      static_cast<TokenId>(std::max_element(expected.begin(), expected.end()) - expected.begin());
  ASSERT_EQ(answer.Ids(), std::vector<TokenId>{best});
  EXPECT_NEAR(answer.tokens[0].logprob, expected[static_cast<size_t>(best)], 1e-5);
  ASSERT_EQ(answer.tokens[0].top.size(), 20u);
  EXPECT_EQ(answer.tokens[0].top[0].id, best);
  for (size_t k = 0; k < 20; ++k) {
    const TopToken& top = answer.tokens[0].top[k];
    EXPECT_NEAR(top.logprob, expected[static_cast<size_t>(top.id)], 1e-5);
    if (k > 0) {
      EXPECT_LE(top.logprob, answer.tokens[0].top[k - 1].logprob);
    }
  }
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_EQ(answer.prompt_tokens, 20);
  EXPECT_EQ(answer.completion_tokens, 1);
}

TEST(EngineTest, PromptLogProbsCoverEveryChunkOnce) {
  for (const int64_t chunk : {64, 128, 2048}) {
    EngineConfig config = FakeConfig();
    config.chunked_prefill_size = chunk;
    const auto engine = MakeFakeEngine(config);
    for (const int64_t length : {1, 2, 64, 65, 200}) {
      for (const int64_t answer_tokens : {0, 2}) {
        Request request = Greedy(length, answer_tokens, static_cast<int>(length));
        request.sampling.prompt_logprobs = true;
        const std::vector<std::vector<double>> expected = ReferenceLogProbs(request.prompt);
        const Answer answer = Ask(*engine, request);
        ASSERT_EQ(answer.prompt_logprobs.size(), static_cast<size_t>(length));
        EXPECT_FALSE(answer.prompt_logprobs[0].has_value());
        for (size_t i = 1; i < answer.prompt_logprobs.size(); ++i) {
          ASSERT_TRUE(answer.prompt_logprobs[i].has_value());
          ASSERT_NEAR(*answer.prompt_logprobs[i], expected[i - 1][static_cast<size_t>(request.prompt[i])],
                      1e-5)
              << "position " << i << ", chunks of " << chunk;
        }
        EXPECT_EQ(answer.completion_tokens, answer_tokens);
        EXPECT_EQ(answer.finish, FinishReason::kLength);
      }
    }
  }
}

TEST(EngineTest, ASlotIsCleanForItsNextOwner) {
  EngineConfig config = FakeConfig();
  config.max_running_requests = 1;
  for (const int64_t length : {1, 5, 64, 200}) {
    const Request request = Greedy(length, 10, 3);
    const auto engine = MakeFakeEngine(config);
    Ask(*engine, Greedy(150, 20, 9));
    ExpectSame(Ask(*engine, request), AskAlone(request, config));
  }
}

TEST(EngineTest, StopIdsEndAnAnswerWithTheStopToken) {
  const Request request = Greedy(30, 20);
  const std::vector<TokenId> free = AskAlone(request, FakeConfig()).Ids();
  ASSERT_EQ(free.size(), 20u);
  // A token that appears for the first time at position 5 or later.
  size_t at = 5;
  while (std::find(free.begin(), free.begin() + static_cast<long>(at), free[at]) !=
         free.begin() + static_cast<long>(at))
    ++at;
  const TokenId stop = free[at];

  const auto engine = MakeFakeEngine(FakeConfig(), {stop});
  const Answer stopped = Ask(*engine, request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.stop_token, stop);
  EXPECT_EQ(stopped.Ids(), std::vector<TokenId>(free.begin(), free.begin() + static_cast<long>(at) + 1));
  EXPECT_EQ(stopped.completion_tokens, static_cast<int64_t>(at) + 1);

  Request ignoring = request;
  ignoring.sampling.ignore_eos = true;
  const Answer ignored = Ask(*engine, ignoring);
  EXPECT_EQ(ignored.Ids(), free);
  EXPECT_EQ(ignored.finish, FinishReason::kLength);
  EXPECT_FALSE(ignored.stop_token.has_value());

  ignoring.sampling.stop_token_ids = {free[2]};
  const Answer own = Ask(*engine, ignoring);
  EXPECT_EQ(own.finish, FinishReason::kStop);
  EXPECT_EQ(own.stop_token, free[2]);
}

TEST(EngineTest, LimitsAreExact) {
  EngineConfig config = FakeConfig();
  config.context_length = 128;
  config.max_total_tokens = 128;
  const auto engine = MakeFakeEngine(config);
  const auto submit = [&](int64_t prompt, int64_t answer) {
    Collector collector(1);
    const StatusOr<RequestId> id = engine->Submit(Greedy(prompt, answer), collector.Callback(0));
    if (!id.ok()) return int64_t{-1};
    collector.WaitForAll();
    EXPECT_EQ(collector.Get(0).finish, FinishReason::kLength);
    return collector.Get(0).completion_tokens;
  };
  EXPECT_EQ(submit(126, 0), 0);
  EXPECT_EQ(submit(126, 1), 1);
  EXPECT_EQ(submit(126, 2), 2);
  EXPECT_EQ(submit(126, 3), -1);
  EXPECT_EQ(submit(127, 0), 0);
  EXPECT_EQ(submit(127, 1), 1);
  EXPECT_EQ(submit(127, 2), -1);
  for (const int64_t prompt : {128, 129, 1280}) {
    EXPECT_EQ(submit(prompt, 0), -1);
    EXPECT_EQ(submit(prompt, 1), -1);
  }
  EXPECT_EQ(submit(1, 127), 127) << "still healthy";
}

TEST(EngineTest, RefusesWithAStatusAndNoCallback) {
  const auto engine = MakeFakeEngine(FakeConfig());
  Collector collector(1);
  const StatusOr<RequestId> empty = engine->Submit(Greedy(0, 1), collector.Callback(0));
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(collector.Get(0).deliveries, 0);
}

TEST(EngineTest, SeedsDecideAnswers) {
  const auto ask = [](Engine& engine, std::optional<uint64_t> seed, int32_t choice) {
    Request request = Greedy(10, 12);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    request.sampling.choice = choice;
    return Ask(engine, request).Ids();
  };
  const auto engine = MakeFakeEngine(FakeConfig());
  std::set<std::vector<TokenId>> unseeded, choices;
  std::vector<std::vector<TokenId>> in_order;
  for (int i = 0; i < 8; ++i) {
    in_order.push_back(ask(*engine, std::nullopt, 0));
    unseeded.insert(in_order.back());
  }
  EXPECT_EQ(unseeded.size(), 8u);
  for (int choice = 0; choice < 4; ++choice) {
    choices.insert(ask(*engine, 7, choice));
    EXPECT_EQ(ask(*engine, 7, choice), ask(*engine, 7, choice));
  }
  EXPECT_EQ(choices.size(), 4u);

  const auto same_seed = MakeFakeEngine(FakeConfig());
  EXPECT_EQ(ask(*same_seed, std::nullopt, 0), in_order[0]);
  EngineConfig other = FakeConfig();
  other.seed = 6;
  EXPECT_NE(ask(*MakeFakeEngine(other), std::nullopt, 0), in_order[0]);
}

TEST(EngineTest, LogProbsAreFiniteHoweverTheChoiceIsCut) {
  const auto engine = MakeFakeEngine(FakeConfig());
  for (const float temperature : {0.0f, 1e-9f, 1.0f}) {
    for (const float top_p : {1e-6f, 1.0f}) {
      for (const int32_t top_k : {0, 1}) {
        Request request = Greedy(10, 3);
        request.sampling.temperature = temperature;
        request.sampling.top_p = top_p;
        request.sampling.top_k = top_k;
        request.sampling.logprobs = true;
        request.sampling.top_logprobs = 5;
        const Answer answer = Ask(*engine, request);
        ASSERT_EQ(answer.tokens.size(), 3u);
        for (const TokenOutput& token : answer.tokens) {
          EXPECT_TRUE(std::isfinite(token.logprob));
          ASSERT_EQ(token.top.size(), 5u);
          for (const TopToken& top : token.top) EXPECT_TRUE(std::isfinite(top.logprob));
        }
      }
    }
  }
}

TEST(EngineTest, AModelThatGivesNanEndsOnlyItsRequest) {
  FakeModel::Options options{.poison = 60};
  const auto engine = MakeFakeEngine(FakeConfig(), {}, options);
  Request bad = Greedy(5, 3), good = Greedy(6, 4);
  bad.prompt = {1, 2, 60};
  good.prompt = {1, 2, 3};
  good.sampling.stop_token_ids = {60};
  Collector collector(2);
  ASSERT_TRUE(engine->Submit(bad, collector.Callback(0)).ok());
  ASSERT_TRUE(engine->Submit(good, collector.Callback(1)).ok());
  collector.WaitForAll();
  EXPECT_EQ(collector.Get(0).finish, FinishReason::kError);
  EXPECT_EQ(collector.Get(0).status.code(), StatusCode::kInternal);
  EXPECT_THAT(collector.Get(0).status.message(), HasSubstr("after 3 tokens"));
  ExpectSame(collector.Get(1), AskAlone(good, FakeConfig()));
  EXPECT_EQ(engine->stats().free_slots, 8);
}

// Holds the engine's thread inside the first step until it is opened.
class Gate {
 public:
  FakeModel::Options Options() {
    return {.on_forward = [this](const batch::ForwardBatch&) {
      if (!std::exchange(reached_once_, true)) reached_.set_value();
      opened_.wait();
    }};
  }
  void WaitUntilReached() { reached_.get_future().wait(); }
  void Open() { open_.set_value(); }

 private:
  bool reached_once_ = false;
  std::promise<void> reached_, open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(EngineTest, RanksThatFailEndEverythingWithTheReason) {
  FakeModel::Options options;
  options.failure = InternalError("rank 1 left");
  const std::unique_ptr<Engine> engine = MakeFakeEngine(FakeConfig(), {}, std::move(options));
  Collector collector(3);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine
                    ->Submit({.prompt = {1, 2, 3}, .sampling = {.temperature = 0, .max_new_tokens = 50}},
                             collector.Callback(i))
                    .ok());
  }
  collector.WaitForAll();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(collector.Get(i).finish, FinishReason::kError);
    EXPECT_EQ(collector.Get(i).status.message(), "rank 1 left");
  }
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  EXPECT_EQ(stats.free_slots, stats.total_slots);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  const auto refused = engine->Submit({.prompt = {1}, .sampling = {.max_new_tokens = 1}}, [](Output) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "rank 1 left");
}

TEST(EngineTest, CancelledWhileQueuedIsNeverComputed) {
  Gate gate;
  EngineConfig config = FakeConfig();
  config.max_running_requests = 1;
  const auto engine = MakeFakeEngine(config, {}, gate.Options());
  Collector collector(11);
  std::vector<RequestId> ids;
  for (size_t i = 0; i < 11; ++i) ids.push_back(*engine->Submit(Greedy(7, 2), collector.Callback(i)));
  gate.WaitUntilReached();
  EXPECT_EQ(engine->stats().running + engine->stats().waiting, 11);
  for (size_t i = 1; i < 10; ++i) engine->Cancel(ids[i]);
  gate.Open();
  collector.WaitForAll();
  for (size_t i = 1; i < 10; ++i) {
    EXPECT_EQ(collector.Get(i).finish, FinishReason::kCancelled);
    EXPECT_EQ(collector.Get(i).prompt_tokens, 7);
  }
  ExpectSame(collector.Get(0), collector.Get(10));
  EXPECT_EQ(engine->stats().prompt_tokens, 14u);
  EXPECT_EQ(engine->stats().waiting, 0);
  engine->Cancel(ids[0]);
  engine->Cancel(12345);
  EXPECT_EQ(Ask(*engine, Greedy(7, 2)).finish, FinishReason::kLength) << "ids of nobody are ignored";
}

TEST(EngineTest, CancelEndsALongPrefillWithinAChunk) {
  Gate gate;
  EngineConfig config = FakeConfig();
  config.chunked_prefill_size = 64;
  const auto engine = MakeFakeEngine(config, {}, gate.Options());
  Collector collector(1);
  const RequestId id = *engine->Submit(Greedy(64 * 20, 5), collector.Callback(0));
  gate.WaitUntilReached();
  engine->Cancel(id);
  gate.Open();
  collector.WaitForAll();
  EXPECT_EQ(collector.Get(0).finish, FinishReason::kCancelled);
  EXPECT_EQ(engine->stats().prompt_tokens, 64u);
  EXPECT_EQ(engine->stats().free_blocks, engine->stats().total_blocks);
  EXPECT_EQ(engine->stats().running, 0);
}

TEST(EngineTest, ACallbackMayCancel) {
  const auto engine = MakeFakeEngine(FakeConfig());
  Collector collector(1);
  const OutputCallback collect = collector.Callback(0);
  std::promise<RequestId> id;
  std::shared_future<RequestId> known = id.get_future().share();
  const StatusOr<RequestId> submitted = engine->Submit(Greedy(5, 1000), [&, known](Output output) {
    if (output.completion_tokens == 3) engine->Cancel(known.get());
    collect(std::move(output));
  });
  id.set_value(*submitted);
  collector.WaitForAll();
  EXPECT_EQ(collector.Get(0).finish, FinishReason::kCancelled);
  EXPECT_EQ(collector.Get(0).completion_tokens, 3);
}

TEST(EngineTest, DestructionCancelsEveryRequest) {
  Collector collector(20);
  {
    Gate gate;
    auto engine = MakeFakeEngine(FakeConfig(), {}, gate.Options());
    for (size_t i = 0; i < 10; ++i) ASSERT_TRUE(engine->Submit(Greedy(5, 1000), collector.Callback(i)).ok());
    gate.WaitUntilReached();
    // These are still in the queue when the loop ends.
    for (size_t i = 10; i < 20; ++i) ASSERT_TRUE(engine->Submit(Greedy(5, 1000), collector.Callback(i)).ok());
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.Open();
    });
    engine.reset();
    opener.join();
  }
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(collector.Get(i).finish, FinishReason::kCancelled);
}

TEST(EngineTest, IdlesWithoutSpinning) {
  const auto engine = MakeFakeEngine(FakeConfig());
  Ask(*engine, Greedy(5, 3));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double cpu_seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(cpu_seconds, 0.1);
}

TEST(EngineTest, ReportsWhatItIs) {
  const auto engine = MakeFakeEngine(FakeConfig(), {3, 9});
  EXPECT_EQ(engine->model_info().vocab_size, FakeModel::kVocab);
  EXPECT_EQ(engine->model_info().context_length, 2048);
  EXPECT_EQ(engine->model_info().max_total_tokens, 4096);
  EXPECT_EQ(engine->model_info().stop_ids, (std::vector<TokenId>{3, 9}));
  EXPECT_EQ(engine->stats().total_blocks, 64);
  EXPECT_EQ(engine->stats().free_blocks, 64);
  EXPECT_EQ(engine->stats().total_slots, 8);
  Request request = Greedy(70, 5);
  request.sampling.ignore_eos = true;
  Ask(*engine, request);
  EXPECT_EQ(engine->stats().prompt_tokens, 70u);
  EXPECT_EQ(engine->stats().generated_tokens, 5u);
  EXPECT_EQ(engine->stats().steps, 5u);
  const ModeSteps modes = engine->stats().steps_by_mode;
  EXPECT_EQ(modes.tp, 1u);
  EXPECT_EQ(modes.decode, 4u);
  EXPECT_EQ(modes.head + modes.state + modes.replicated, 0u);
  EXPECT_EQ(engine->stats().free_blocks, 64);
}

}  // namespace
}  // namespace perigee::engine
