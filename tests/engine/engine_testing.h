#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_config.h"
#include "testing/fake_model.h"

namespace perigee::engine {

// Everything that one request was given.
struct Answer {
  std::vector<TokenOutput> tokens;
  std::vector<std::optional<float>> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;
  Status status;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  bool reused_answer = false;
  int deliveries = 0;

  std::vector<TokenId> Ids() const;
};

// Takes the deliveries of many requests. Aborts when one gets anything after its end, or counts that do not
// fit its tokens.
class Collector {
 public:
  explicit Collector(size_t requests) : answers_(requests) {}
  OutputCallback Callback(size_t index);
  // Until every request has its final delivery.
  void WaitForAll();
  // Until the request has as many tokens, or ended before.
  void WaitForTokens(size_t index, size_t count);
  Answer Get(size_t index) const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Answer> answers_;
};

// A resolved configuration of the fake model: 64 blocks, 8 slots, chunks of 2048, context 2048.
EngineConfig FakeConfig();
std::unique_ptr<Engine> MakeFakeEngine(const EngineConfig& config, std::vector<TokenId> stop_ids = {},
                                       FakeModel::Options options = {});

// Submits, waits and returns what came.
Answer Ask(Engine& engine, Request request);
// The same on an engine of its own.
Answer AskAlone(const Request& request, const EngineConfig& config, std::vector<TokenId> stop_ids = {});

// The same tokens, log-probabilities to the bit, ends and counts.
void ExpectSame(const Answer& a, const Answer& b);

// A request with a seed, of up to `max_tokens` tokens in all; every parameter is set on some.
Request RandomRequest(std::mt19937& random, int64_t max_tokens);

}  // namespace perigee::engine
