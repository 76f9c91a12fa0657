#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "engine/engine_testing.h"

namespace perigee::engine {
namespace {

const std::vector<TokenId> kStopIds = {11};

std::vector<Request> RandomRequests(size_t count, int64_t max_tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Request> requests;
  for (size_t i = 0; i < count; ++i) requests.push_back(RandomRequest(random, max_tokens));
  return requests;
}

// Submits all from several threads at once, without waiting for answers.
std::vector<RequestId> SubmitAll(Engine& engine, const std::vector<Request>& requests, Collector& collector) {
  constexpr size_t kThreads = 4;
  std::vector<RequestId> ids(requests.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < requests.size(); i += kThreads) {
        const StatusOr<RequestId> id = engine.Submit(requests[i], collector.Callback(i));
        ASSERT_TRUE(id.ok()) << id.status().message();
        ids[i] = *id;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ids;
}

void ExpectEverythingFree(const Engine& engine) {
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.free_blocks, stats.total_blocks);
  EXPECT_EQ(stats.free_slots, stats.total_slots);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
}

class EngineLoadTest : public ::testing::TestWithParam<int64_t> {
 protected:
  // 6 blocks for 8 sequences of up to 384 tokens: most steps lack memory.
  EngineConfig TightConfig() const {
    EngineConfig config = FakeConfig();
    config.context_length = 384;
    config.max_total_tokens = 384;
    config.chunked_prefill_size = GetParam();
    config.threads = 2;
    return config;
  }
};

TEST_P(EngineLoadTest, EveryAnswerIsTheSameAsAlone) {
  const EngineConfig config = TightConfig();
  EngineConfig roomy = config;
  roomy.max_total_tokens = 4096;
  // On the grid of 64 the chunk size must not matter.
  if (GetParam() % 64 == 0) roomy.chunked_prefill_size = 2048;
  const std::vector<Request> requests = RandomRequests(200, 384, 3);
  Collector collector(requests.size());
  const auto engine = MakeFakeEngine(config, kStopIds);
  SubmitAll(*engine, requests, collector);
  collector.WaitForAll();
  EXPECT_GT(engine->stats().preemptions, 3u) << "the pool was not tight enough to test anything";
  ExpectEverythingFree(*engine);
  int64_t prompt_tokens = 0, generated = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSame(collector.Get(i), AskAlone(requests[i], roomy, kStopIds));
    prompt_tokens += static_cast<int64_t>(requests[i].prompt.size());
    generated += collector.Get(i).completion_tokens;
  }
  // Work done twice counts once.
  EXPECT_EQ(engine->stats().prompt_tokens, static_cast<uint64_t>(prompt_tokens));
  EXPECT_EQ(engine->stats().generated_tokens, static_cast<uint64_t>(generated));
}

TEST_P(EngineLoadTest, CancelsAtRandomMomentsDisturbNobody) {
  const EngineConfig config = TightConfig();
  const std::vector<Request> requests = RandomRequests(200, 384, 4);
  Collector collector(requests.size());
  const auto engine = MakeFakeEngine(config, kStopIds);
  const std::vector<RequestId> ids = SubmitAll(*engine, requests, collector);
  std::mt19937 random(5);
  std::vector<bool> cancelled(requests.size());
  for (size_t n = 0; n < requests.size() / 2; ++n) {
    const size_t victim = random() % requests.size();
    cancelled[victim] = true;
    engine->Cancel(ids[victim]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
  }
  collector.WaitForAll();
  ExpectEverythingFree(*engine);
  int ended_by_cancel = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const Answer answer = collector.Get(i);
    const Answer expected = AskAlone(requests[i], config, kStopIds);
    if (answer.finish != FinishReason::kCancelled) {
      ExpectSame(answer, expected);
      continue;
    }
    ++ended_by_cancel;
    EXPECT_TRUE(cancelled[i]);
    // What was delivered before is the beginning of the answer.
    const std::vector<TokenId> ids_seen = answer.Ids(), ids_alone = expected.Ids();
    ASSERT_LE(ids_seen.size(), ids_alone.size());
    EXPECT_TRUE(std::equal(ids_seen.begin(), ids_seen.end(), ids_alone.begin()));
  }
  EXPECT_GT(ended_by_cancel, 20);
}

INSTANTIATE_TEST_SUITE_P(ChunkSizes, EngineLoadTest, ::testing::Values(1, 3, 64, 100, 2048));

}  // namespace
}  // namespace perigee::engine
