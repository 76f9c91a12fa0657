#include "engine/engine_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine_impl.h"

namespace perigee::engine {

std::vector<TokenId> Answer::Ids() const {
  std::vector<TokenId> ids;
  for (const TokenOutput& token : tokens) ids.push_back(token.id);
  return ids;
}

OutputCallback Collector::Callback(size_t index) {
  return [this, index](Output output) {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[index];
    PERIGEE_CHECK_MSG(answer.finish == FinishReason::kNone, "a delivery after the last");
    ++answer.deliveries;
    for (TokenOutput& token : output.tokens) answer.tokens.push_back(std::move(token));
    if (!output.prompt_logprobs.empty()) {
      PERIGEE_CHECK_MSG(answer.prompt_logprobs.empty() && answer.deliveries == 1, "delivered once, first");
      answer.prompt_logprobs = std::move(output.prompt_logprobs);
    }
    answer.finish = output.finish;
    answer.stop_token = output.stop_token;
    answer.status = output.status;
    answer.prompt_tokens = output.prompt_tokens;
    answer.completion_tokens = output.completion_tokens;
    answer.cached_tokens = output.cached_tokens;
    answer.reused_answer = output.reused_answer;
    PERIGEE_CHECK(answer.cached_tokens <= answer.prompt_tokens);
    if (output.finish != FinishReason::kError) {
      PERIGEE_CHECK(answer.completion_tokens == static_cast<int64_t>(answer.tokens.size()));
    }
    // Under the lock: the collector may be gone as soon as a waiter sees the final delivery.
    changed_.notify_all();
  };
}

void Collector::WaitForAll() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::all_of(answers_.begin(), answers_.end(),
                       [](const Answer& a) { return a.finish != FinishReason::kNone; });
  });
}

void Collector::WaitForTokens(size_t index, size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return answers_[index].tokens.size() >= count || answers_[index].finish != FinishReason::kNone;
  });
}

Answer Collector::Get(size_t index) const {
  const std::lock_guard lock(mutex_);
  return answers_[index];
}

EngineConfig FakeConfig() {
  return {.model_path = "fake",
          .context_length = 2048,
          .max_running_requests = 8,
          .max_total_tokens = 64 * 64,
          .chunked_prefill_size = 2048,
          .threads = 1,
          .seed = 5};
}

std::unique_ptr<Engine> MakeFakeEngine(const EngineConfig& config, std::vector<TokenId> stop_ids,
                                       FakeModel::Options options) {
  return MakeEngine(std::make_unique<FakeModel>(std::move(options)), config, std::move(stop_ids));
}

Answer Ask(Engine& engine, Request request) {
  Collector collector(1);
  const StatusOr<RequestId> id = engine.Submit(std::move(request), collector.Callback(0));
  PERIGEE_CHECK_MSG(id.ok(), id.status().message());
  collector.WaitForAll();
  return collector.Get(0);
}

Answer AskAlone(const Request& request, const EngineConfig& config, std::vector<TokenId> stop_ids) {
  return Ask(*MakeFakeEngine(config, std::move(stop_ids)), request);
}

void ExpectSame(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.Ids(), b.Ids());
  EXPECT_EQ(a.finish, b.finish);
  EXPECT_EQ(a.stop_token, b.stop_token);
  EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
  EXPECT_EQ(a.completion_tokens, b.completion_tokens);
  EXPECT_EQ(a.prompt_logprobs, b.prompt_logprobs);
  ASSERT_EQ(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.tokens[i].logprob, b.tokens[i].logprob) << "token " << i;
    ASSERT_EQ(a.tokens[i].top.size(), b.tokens[i].top.size());
    for (size_t k = 0; k < a.tokens[i].top.size(); ++k) {
      EXPECT_EQ(a.tokens[i].top[k].id, b.tokens[i].top[k].id);
      EXPECT_EQ(a.tokens[i].top[k].logprob, b.tokens[i].top[k].logprob);
    }
  }
}

Request RandomRequest(std::mt19937& random, int64_t max_tokens) {
  const auto uniform = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto token = [&] { return static_cast<TokenId>(uniform(0, FakeModel::kVocab - 1)); };
  Request request;
  // A third each: long prompts, middling ones, short ones with long answers (which fill a pool unawares).
  const int64_t kind = uniform(0, 2);
  const int64_t prompt = kind == 0 ? uniform(1, max_tokens - 1) : uniform(1, kind == 1 ? max_tokens / 3 : 20);
  for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(token());
  SamplingParams& s = request.sampling;
  s.temperature = uniform(0, 1) == 0 ? 0.0f : 1.0f;
  s.top_p = uniform(0, 1) == 0 ? 1.0f : 0.8f;
  s.top_k = uniform(0, 1) == 0 ? 0 : 10;
  s.seed = static_cast<uint64_t>(uniform(0, 1000));
  s.choice = static_cast<int32_t>(uniform(0, 3));
  s.max_new_tokens =
      uniform(0, 9) == 0 ? 0 : uniform(1, std::min<int64_t>(max_tokens - prompt, kind == 2 ? 250 : 60));
  s.ignore_eos = kind == 2 || uniform(0, 3) == 0;
  if (uniform(0, 7) == 0) s.stop_token_ids = {token()};
  s.logprobs = uniform(0, 1) == 0;
  s.top_logprobs = uniform(0, 1) == 0 ? 0 : 5;
  s.prompt_logprobs = uniform(0, 2) == 0;
  return request;
}

}  // namespace perigee::engine
