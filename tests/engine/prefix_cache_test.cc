// Reuse of prefixes, by a model whose logits are a hash of everything that its caches hold: whatever is wrong
// with a reused row or state changes every later token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <random>
#include <vector>

#include "engine/engine_testing.h"

namespace perigee::engine {
namespace {

EngineConfig CachingConfig() {
  EngineConfig config = FakeConfig();
  config.state_snapshots = 32;
  config.state_checkpoint_interval = 2048;
  config.max_prefill_tokens = config.chunked_prefill_size;
  return config;
}

std::vector<TokenId> RandomIds(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>(random() % FakeModel::kVocab));
  return ids;
}

std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Request Greedy(std::vector<TokenId> prompt, int64_t max_new_tokens) {
  Request request{.prompt = std::move(prompt)};
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = max_new_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 3;
  return request;
}

Answer Cold(const Request& request) {
  EngineConfig config = FakeConfig();
  config.context_length = 16384;
  config.max_total_tokens = 16384;
  return AskAlone(request, config);
}

// Asks, and expects `cached` reused tokens and the answer of an engine without cache.
Answer ExpectExact(Engine& engine, const Request& request, int64_t cached) {
  const Answer answer = Ask(engine, request);
  EXPECT_EQ(answer.cached_tokens, cached);
  EXPECT_FALSE(answer.reused_answer);
  ExpectSame(answer, Cold(request));
  return answer;
}

void Flush(Engine& engine) {
  std::promise<void> flushed;
  engine.FlushCache([&] { flushed.set_value(); });
  flushed.get_future().wait();
}

void ExpectNothingHeld(Engine& engine) {
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.free_blocks + stats.cached_blocks, stats.total_blocks);
  EXPECT_EQ(stats.free_slots, stats.total_slots);
  EXPECT_LE(stats.used_snapshots, stats.total_snapshots);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  Flush(engine);
  EXPECT_EQ(engine.stats().free_blocks, stats.total_blocks);
  EXPECT_EQ(engine.stats().cached_blocks, 0);
  EXPECT_EQ(engine.stats().used_snapshots, 0);
}

TEST(PrefixCacheTest, TheSamePromptAgainComputesItsLastBlockOnly) {
  const auto engine = MakeFakeEngine(CachingConfig());
  for (const int64_t length : {300, 65, 129, 193, 128, 64, 63, 1}) {
    SCOPED_TRACE(length);
    const Request request = Greedy(RandomIds(length, static_cast<unsigned>(length)), 5);
    ExpectExact(*engine, request, 0);
    for (int i = 0; i < 2; ++i) ExpectExact(*engine, request, (length - 1) / 64 * 64);
  }
  ExpectNothingHeld(*engine);
}

TEST(PrefixCacheTest, TwoQuestionsAfterOneBeginning) {
  const auto engine = MakeFakeEngine(CachingConfig());
  const std::vector<TokenId> shared = RandomIds(200, 1);
  ExpectExact(*engine, Greedy(shared + RandomIds(20, 2), 5), 0);
  ExpectExact(*engine, Greedy(shared + RandomIds(20, 3), 5), 192);
}

TEST(PrefixCacheTest, APlaceWherePromptsPartIsKeptForTheThird) {
  const auto engine = MakeFakeEngine(CachingConfig());
  const std::vector<TokenId> shared = RandomIds(200, 1);
  ExpectExact(*engine, Greedy(shared + RandomIds(300, 2), 5), 0);
  ExpectExact(*engine, Greedy(shared + RandomIds(300, 3), 5), 0);
  ExpectExact(*engine, Greedy(shared + RandomIds(300, 4), 5), 192);
}

TEST(PrefixCacheTest, LongPromptsLeaveStatesAtTheInterval) {
  EngineConfig config = CachingConfig();
  config.state_checkpoint_interval = 256;
  const auto engine = MakeFakeEngine(config);
  const std::vector<TokenId> document = RandomIds(900, 1);
  ExpectExact(*engine, Greedy(document, 5), 0);
  const std::vector<TokenId> beginning(document.begin(), document.begin() + 600);
  ExpectExact(*engine, Greedy(beginning + RandomIds(50, 2), 5), 512);
}

// Blocks without their states are worth nothing.
TEST(PrefixCacheTest, AnEvictedStateIsNotBelievedToBeThere) {
  EngineConfig config = CachingConfig();
  config.state_snapshots = 1;
  const auto engine = MakeFakeEngine(config);
  const Request a = Greedy(RandomIds(300, 1), 1);
  ExpectExact(*engine, a, 0);
  ExpectExact(*engine, a, 256);
  ExpectExact(*engine, Greedy(RandomIds(300, 2), 1), 0);
  EXPECT_GT(engine->stats().evicted_snapshots, 0u);
  ExpectExact(*engine, a, 0);
  ExpectExact(*engine, a, 256);
  ExpectNothingHeld(*engine);
}

TEST(PrefixCacheTest, EvictedBlocksAreComputedAgain) {
  EngineConfig config = CachingConfig();
  config.context_length = config.max_total_tokens = 512;
  const auto engine = MakeFakeEngine(config);
  for (unsigned round = 0; round < 3; ++round) {
    for (unsigned seed = 1; seed <= 3; ++seed) ExpectExact(*engine, Greedy(RandomIds(300, seed), 20), 0);
  }
  EXPECT_GT(engine->stats().evicted_blocks, 0u);
  EXPECT_EQ(engine->stats().preemptions, 0u) << "what is cached gives way first";
  ExpectNothingHeld(*engine);
}

TEST(PrefixCacheTest, ANextTurnWithoutTheAnswerReusesThePromptOnly) {
  const auto engine = MakeFakeEngine(CachingConfig());
  const std::vector<TokenId> prompt = RandomIds(150, 1);
  const Answer first = ExpectExact(*engine, Greedy(prompt, 200), 0);
  std::vector<TokenId> kept = first.Ids();
  kept.resize(20);
  ExpectExact(*engine, Greedy(prompt + kept + RandomIds(60, 2), 10), 128);
}

TEST(PrefixCacheTest, ANextTurnReusesTheAnswer) {
  const auto engine = MakeFakeEngine(CachingConfig());
  const std::vector<TokenId> prompt = RandomIds(150, 1);
  const Answer first = Ask(*engine, Greedy(prompt, 200));
  // 150 + 199 tokens went through the model.
  const Answer second = Ask(*engine, Greedy(prompt + first.Ids() + RandomIds(10, 2), 10));
  EXPECT_EQ(second.cached_tokens, 320);
  EXPECT_TRUE(second.reused_answer);
  EXPECT_LE(engine->stats().used_snapshots, 4) << "of an answer the newest state is kept";
}

TEST(PrefixCacheTest, PromptLogprobsAreComputedForEveryRow) {
  Request request = Greedy(RandomIds(300, 1), 3);
  request.sampling.prompt_logprobs = true;
  const Answer cold = Cold(request);
  EXPECT_FALSE(cold.prompt_logprobs[0].has_value());
  for (const int64_t chunk : {64, 128, 2048}) {
    EngineConfig config = CachingConfig();
    config.chunked_prefill_size = config.max_prefill_tokens = config.state_checkpoint_interval = chunk;
    const auto engine = MakeFakeEngine(config);
    ExpectExact(*engine, Greedy(request.prompt, 3), 0);
    ExpectExact(*engine, request, 0);
    ExpectExact(*engine, Greedy(request.prompt, 3), 256);
  }
}

TEST(PrefixCacheTest, FlushForgets) {
  const auto engine = MakeFakeEngine(CachingConfig());
  const Request request = Greedy(RandomIds(300, 1), 3);
  ExpectExact(*engine, request, 0);
  ExpectNothingHeld(*engine);
  ExpectExact(*engine, request, 0);
}

TEST(PrefixCacheTest, FlushInTheMiddleOfAnAnswerLeavesItAlone) {
  const auto engine = MakeFakeEngine(CachingConfig());
  const Request request = Greedy(RandomIds(300, 1), 500);
  Collector collector(1);
  ASSERT_TRUE(engine->Submit(request, collector.Callback(0)).ok());
  for (size_t tokens = 1; tokens < 400; tokens += 60) {
    collector.WaitForTokens(0, tokens);
    Flush(*engine);
  }
  collector.WaitForAll();
  ExpectSame(collector.Get(0), Cold(request));
  ExpectNothingHeld(*engine);
}

TEST(PrefixCacheTest, ACancelledTurnDoesNotHarmTheNext) {
  const auto engine = MakeFakeEngine(CachingConfig());
  const std::vector<TokenId> prompt = RandomIds(150, 1);
  const std::vector<TokenId> second = prompt + RandomIds(100, 2);
  ExpectExact(*engine, Greedy(prompt, 10), 0);
  Collector collector(1);
  const StatusOr<RequestId> id = engine->Submit(Greedy(second, 1000), collector.Callback(0));
  ASSERT_TRUE(id.ok());
  collector.WaitForTokens(0, 1);
  engine->Cancel(*id);
  collector.WaitForAll();
  const Answer third = ExpectExact(*engine, Greedy(second + RandomIds(100, 3), 10), 192);
  EXPECT_EQ(third.prompt_tokens, 350);
}

TEST(PrefixCacheTest, CountersAreTheSumsOverRequests) {
  EngineConfig config = CachingConfig();
  config.context_length = config.max_total_tokens = 768;
  const auto engine = MakeFakeEngine(config);
  constexpr size_t kRequests = 60;
  Collector collector(kRequests);
  uint64_t prompts = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    const auto seed = static_cast<unsigned>(i);
    const Request request =
        Greedy(RandomIds(70 + 50 * (seed % 5), seed % 3) + RandomIds(30, seed), 40 + 30 * (seed % 4));
    prompts += request.prompt.size();
    ASSERT_TRUE(engine->Submit(request, collector.Callback(i)).ok());
  }
  collector.WaitForAll();
  uint64_t cached = 0;
  for (size_t i = 0; i < kRequests; ++i) cached += static_cast<uint64_t>(collector.Get(i).cached_tokens);
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.preemptions, 0u);
  EXPECT_GT(cached, 0u);
  EXPECT_EQ(stats.cached_tokens, cached);
  EXPECT_EQ(stats.prompt_tokens + stats.cached_tokens, prompts);
  EXPECT_LE(stats.prefix_hits, stats.prefix_lookups);
  EXPECT_LE(stats.prefix_lookups, kRequests);
  ExpectNothingHeld(*engine);
}

TEST(PrefixCacheTest, AThousandCancelsLeaveNothingHeld) {
  EngineConfig config = CachingConfig();
  config.context_length = config.max_total_tokens = 1024;
  config.chunked_prefill_size = config.max_prefill_tokens = config.state_checkpoint_interval = 128;
  const auto engine = MakeFakeEngine(config);
  constexpr size_t kRequests = 2000;
  Collector collector(kRequests);
  std::mt19937 random(7);
  std::vector<RequestId> ids(kRequests);
  // Cancelled after some tokens, or at once, whatever they are doing then.
  for (size_t i = 0; i < kRequests; ++i) {
    const auto length = static_cast<int64_t>(random() % 300);
    const StatusOr<RequestId> id = engine->Submit(
        Greedy(RandomIds(length, static_cast<unsigned>(random() % 4)) +
                   RandomIds(1 + static_cast<int64_t>(random() % 40), static_cast<unsigned>(i)),
               400),
        collector.Callback(i));
    ASSERT_TRUE(id.ok());
    ids[i] = *id;
    if (i % 6 == 5) {
      collector.WaitForTokens(i - 5, 1 + random() % 60);
      continue;
    }
    if (i >= 8) engine->Cancel(ids[i - random() % 8]);
  }
  for (size_t i = 0; i < kRequests; ++i) engine->Cancel(ids[i]);
  collector.WaitForAll();
  const EngineStats stats = engine->stats();
  EXPECT_GE(stats.cancellations, 1000u);
  EXPECT_GT(stats.prefix_hits, 50u);
  ExpectNothingHeld(*engine);
  const Request request = Greedy(RandomIds(200, 1), 5);
  ExpectExact(*engine, request, 0);
}

// Eight requests want a little more than the pool has.
TEST(PrefixCacheTest, PoolsAtFullDemandFailNobody) {
  EngineConfig config = CachingConfig();
  config.chunked_prefill_size = config.max_prefill_tokens = config.state_checkpoint_interval = 128;
  constexpr int64_t kEach = 336;  // 6 blocks
  config.context_length = 384;
  config.max_total_tokens = 46 * 64;  // 48 wanted
  config.state_snapshots = 4;
  const auto engine = MakeFakeEngine(config);
  Collector collector(24);
  std::vector<Request> requests;
  for (unsigned i = 0; i < 24; ++i) {
    requests.push_back(Greedy(RandomIds(60, i % 3) + RandomIds(40, i), kEach - 100));
    ASSERT_TRUE(engine->Submit(requests.back(), collector.Callback(i)).ok());
  }
  collector.WaitForAll();
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const Answer answer = collector.Get(i);
    EXPECT_EQ(answer.finish, FinishReason::kLength);
    ASSERT_FALSE(answer.reused_answer);
    ExpectSame(answer, Cold(requests[i]));
  }
  ExpectNothingHeld(*engine);
}

TEST(PrefixCacheTest, ChatOfTwentyTurnsComputesWhatIsNew) {
  EngineConfig config = CachingConfig();
  config.context_length = config.max_total_tokens = 16384;
  const auto engine = MakeFakeEngine(config);
  std::vector<TokenId> history = RandomIds(8000, 1);
  for (unsigned turn = 1; turn <= 20; ++turn) {
    SCOPED_TRACE(turn);
    const int64_t added = 10 + 7 * turn % 50;
    const size_t processed = history.size();
    history = history + RandomIds(added, 100 + turn);
    const Answer answer = Ask(*engine, Greedy(history, 30 + 3 * turn % 40));
    const auto work = static_cast<int64_t>(history.size()) - answer.cached_tokens;
    if (turn > 1) {
      EXPECT_LE(work, added + 64);
      EXPECT_LE(answer.cached_tokens, static_cast<int64_t>(processed));
    }
    history = history + answer.Ids();
  }
  ExpectNothingHeld(*engine);
}

}  // namespace
}  // namespace perigee::engine
