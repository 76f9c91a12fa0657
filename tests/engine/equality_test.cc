// Whatever else runs and whatever was kept from before, a request gets what it gets alone on a fresh engine:
// on the bundled model, on one rank and with prompts split over four.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_testing.h"

namespace perigee::engine {
namespace {

constexpr int64_t kContext = 640;

EngineConfig TinyConfig() {
  EngineConfig config;
  config.model_path = PERIGEE_MODELS "/tiny-kimi-linear";
  config.context_length = kContext;
  config.max_running_requests = 8;
  config.chunked_prefill_size = 128;
  config.threads = 2;
  config.seed = 1;
  return config;
}

std::unique_ptr<Engine> Start(const EngineConfig& config) {
  StatusOr<std::unique_ptr<Engine>> engine = StartEngine(config);
  PERIGEE_CHECK_MSG(engine.ok(), engine.status().message());
  return std::move(engine).value();
}

// An engine under load.
struct Setting {
  int cp = 1;
  int64_t blocks = 12;  // for eight requests: most steps lack one
  int64_t snapshots = 6;
  std::string kda_mode = "auto";  // state: within 5e-4 of one rank, and never to the bit
};

EngineConfig ConfigOf(const Setting& setting) {
  EngineConfig config = TinyConfig();
  config.max_total_tokens = setting.blocks * 64;
  config.state_snapshots = setting.snapshots;
  if (setting.cp > 1) {
    config.parallel.tp = config.parallel.attn_cp = setting.cp;
    config.parallel.enable_prefill_cp = true;
    config.parallel.cp_strategy = "zigzag";
    config.parallel.cp_kda_mode = setting.kda_mode;
  }
  return config;
}

class Load {
 public:
  explicit Load(unsigned seed) : random_(seed) {
    for (int i = 0; i < 4; ++i) documents_.push_back(Ids(Uniform(70, 200)));
  }

  int64_t Uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  std::vector<TokenId> Ids(int64_t count) {
    std::vector<TokenId> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>(Uniform(0, 2000)));
    return ids;
  }

  // A question about one of the documents, or something of its own.
  Request Question() {
    Request request;
    if (Uniform(0, 4) > 0) request.prompt = documents_[static_cast<size_t>(Uniform(0, 3))];
    Append(request.prompt, Ids(Uniform(1, 50)));
    SetSampling(request.sampling);
    return request;
  }

  Request NextTurn(const Request& last, const std::vector<TokenId>& answer) {
    Request request{.prompt = last.prompt};
    Append(request.prompt, answer);
    Append(request.prompt, Ids(Uniform(1, 30)));
    SetSampling(request.sampling);
    return request;
  }

 private:
  static void Append(std::vector<TokenId>& to, const std::vector<TokenId>& ids) {
    to.insert(to.end(), ids.begin(), ids.end());
  }

  void SetSampling(SamplingParams& s) {
    s.temperature = Uniform(0, 2) == 0 ? 1.0f : 0.0f;
    s.seed = static_cast<uint64_t>(Uniform(0, 1000));
    s.max_new_tokens = Uniform(0, 5) == 0 ? Uniform(60, 90) : Uniform(0, 16);
    s.ignore_eos = true;
    s.logprobs = true;
    s.top_logprobs = 5;
    s.prompt_logprobs = Uniform(0, 7) == 0;
  }

  std::mt19937 random_;
  std::vector<std::vector<TokenId>> documents_;
};

// Answers of lone requests on engines of their own.
class Alone {
 public:
  const Answer& Of(const Request& request) {
    const SamplingParams& s = request.sampling;
    const auto key = std::tuple(request.prompt, *s.seed, s.temperature, s.max_new_tokens, s.prompt_logprobs);
    const auto [entry, is_new] = answers_.try_emplace(key);
    if (is_new) entry->second = Ask(*Start(TinyConfig()), request);
    return entry->second;
  }

 private:
  std::map<std::tuple<std::vector<TokenId>, uint64_t, float, int64_t, bool>, Answer> answers_;
};

// Within 5e-4; where two tokens are as good as equal, the answers may part.
void ExpectClose(const Answer& a, const Answer& alone) {
  EXPECT_EQ(a.finish, alone.finish);
  EXPECT_EQ(a.prompt_tokens, alone.prompt_tokens);
  ASSERT_EQ(a.tokens.size(), alone.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    for (const TopToken& top : a.tokens[i].top) {
      for (const TopToken& other : alone.tokens[i].top) {
        if (top.id != other.id) continue;
        EXPECT_NEAR(top.logprob, other.logprob, 5e-4) << "token " << i;
      }
    }
    if (a.tokens[i].id != alone.tokens[i].id) return;
    EXPECT_NEAR(a.tokens[i].logprob, alone.tokens[i].logprob, 5e-4) << "token " << i;
  }
}

struct Sums {
  int64_t requests = 0, cached = 0, reused_answers = 0;
};

// Conversations of several turns and single questions, all of a round at the same time, among requests that
// are cancelled at random moments.
Sums RunLoad(Engine& engine, bool exact, Alone& alone, int rounds, size_t conversations, size_t singles) {
  Load load(11);
  Sums sums;
  std::vector<Request> requests(conversations);
  for (Request& request : requests) request = load.Question();
  for (int round = 0; round < rounds; ++round) {
    const size_t kept = conversations + singles, cancelled = conversations / 2;
    requests.resize(conversations);
    while (requests.size() < kept) requests.push_back(load.Question());
    Collector collector(kept + cancelled);
    std::vector<RequestId> doomed;
    for (size_t i = 0; i < kept; ++i) {
      EXPECT_TRUE(engine.Submit(requests[i], collector.Callback(i)).ok());
      if (i % 2 == 0 && doomed.size() < cancelled) {
        const StatusOr<RequestId> id =
            engine.Submit(load.Question(), collector.Callback(kept + doomed.size()));
        EXPECT_TRUE(id.ok());
        doomed.push_back(*id);
      }
    }
    for (size_t d = 0; d < doomed.size(); ++d) {
      collector.WaitForTokens(kept + d, static_cast<size_t>(load.Uniform(0, 8)));
      engine.Cancel(doomed[d]);
    }
    collector.WaitForAll();
    for (size_t i = 0; i < kept; ++i) {
      SCOPED_TRACE(::testing::Message() << "round " << round << ", request " << i);
      const Answer answer = collector.Get(i);
      ++sums.requests;
      sums.cached += answer.cached_tokens;
      sums.reused_answers += answer.reused_answer ? 1 : 0;
      if (answer.reused_answer || !exact) {
        ExpectClose(answer, alone.Of(requests[i]));
      } else {
        ExpectSame(answer, alone.Of(requests[i]));
      }
      if (i < conversations) requests[i] = load.NextTurn(requests[i], answer.Ids());
    }
    if (::testing::Test::HasFailure()) break;
  }
  return sums;
}

void RunUnder(const Setting& setting, Alone& alone, int rounds, size_t conversations, size_t singles) {
  SCOPED_TRACE(::testing::Message() << "cp " << setting.cp << ", " << setting.blocks << " blocks");
  SetLogLevel(LogLevel::kWarning);
  const auto engine = Start(ConfigOf(setting));
  const Sums sums = RunLoad(*engine, setting.kda_mode != "state", alone, rounds, conversations, singles);
  const EngineStats stats = engine->stats();
  std::cerr << "cp " << setting.cp << ", " << setting.blocks << " blocks: " << sums.requests << " requests, "
            << sums.cached << " of " << stats.prompt_tokens + stats.cached_tokens << " prompt tokens reused, "
            << sums.reused_answers << " requests upon answers, " << stats.preemptions << " preemptions, "
            << stats.cancellations << " cancels, " << stats.evicted_blocks << " blocks and "
            << stats.evicted_snapshots << " snapshots evicted\n";
  EXPECT_GT(sums.cached, 0);
  EXPECT_GT(stats.evicted_snapshots, 0u);
  EXPECT_EQ(stats.free_blocks + stats.cached_blocks, stats.total_blocks);
  EXPECT_EQ(stats.free_slots, stats.total_slots);
}

TEST(EqualityTest, MixedRequestsAreAnsweredAsAlone) {
  Alone alone;
  for (const int cp : {1, 4}) RunUnder({.cp = cp}, alone, 3, 6, 4);
}

TEST(EqualityTest, TheStateModeIsCloseToAlone) {
  Alone alone;
  RunUnder({.cp = 4, .kda_mode = "state"}, alone, 3, 6, 4);
}

TEST(EqualitySlowTest, TwoHundredMixedRequestsAreAnsweredAsAlone) {
  Alone alone;
  for (const int cp : {1, 4}) RunUnder({.cp = cp}, alone, 4, 25, 25);
  RunUnder({.cp = 4, .blocks = 80, .snapshots = 60}, alone, 4, 25, 25);
}

// A document of 8,000 tokens and 20 turns about it.
TEST(EqualitySlowTest, ALongChatComputesWhatIsNew) {
  EngineConfig config = TinyConfig();
  config.context_length = config.max_total_tokens = 16384;
  config.chunked_prefill_size = 2048;
  const auto engine = Start(config);
  Load load(3);
  Request request{.prompt = load.Ids(8000)};
  request.sampling = {
      .temperature = 0, .max_new_tokens = 40, .ignore_eos = true, .logprobs = true, .top_logprobs = 5};
  int64_t worst = 0;
  Answer answer;
  for (int turn = 1; turn <= 20; ++turn) {
    const std::vector<TokenId> added = load.Ids(load.Uniform(5, 60));
    request.prompt.insert(request.prompt.end(), added.begin(), added.end());
    request.sampling.max_new_tokens = load.Uniform(5, 40);
    answer = Ask(*engine, request);
    const int64_t work = answer.prompt_tokens - answer.cached_tokens;
    if (turn > 1) {
      worst = std::max(worst, work - static_cast<int64_t>(added.size()));
      EXPECT_LE(work, static_cast<int64_t>(added.size()) + 64) << "turn " << turn;
    }
    if (turn < 20) {
      const std::vector<TokenId> ids = answer.Ids();
      request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
    }
  }
  std::cerr << "at most " << worst << " tokens beside what is new\n";
  EXPECT_TRUE(answer.reused_answer);
  ExpectClose(answer, Ask(*Start(config), request));
}

}  // namespace
}  // namespace perigee::engine
