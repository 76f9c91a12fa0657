#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "scheduler/chunking.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulated_caches.h"

namespace perigee::scheduler {
namespace {

constexpr int32_t kVocab = 23;

struct Expected {
  std::vector<int32_t> tokens;
  Finish finish = Finish::kLength;
};

// What a request must give, whatever else runs.
Expected Answer(const NewSequence& request) {
  Expected expected;
  std::vector<int32_t> history = request.prompt;
  while (static_cast<int64_t>(expected.tokens.size()) < request.max_new_tokens) {
    history.push_back(NextToken(history, kVocab));
    expected.tokens.push_back(history.back());
    if (std::count(request.stop_ids.begin(), request.stop_ids.end(), history.back()) > 0) {
      expected.finish = Finish::kStop;
      break;
    }
  }
  return expected;
}

struct TraceOptions {
  int64_t chunk_size = 64;
  int64_t max_running = 4;
  int64_t num_blocks = 8;
  int requests = 16;
  int64_t max_prompt = 1 << 20;
  int64_t max_answer = 200;
  int cancel_permille = 4;  // per step
};

// One random run of many requests, checked after every step.
class Trace {
 public:
  Trace(const TraceOptions& options, unsigned seed)
      : options_(options),
        random_(seed),
        scheduler_({.max_running = options.max_running,
                    .chunk_size = options.chunk_size,
                    .num_blocks = options.num_blocks}),
        caches_(kVocab) {}

  void Run() {
    for (int step = 0;; ++step) {
      ASSERT_LT(step, 100000) << "no end";
      SubmitSome();
      CancelSome();
      const std::optional<batch::BatchPlan> plan = scheduler_.Next();
      if (!plan) {
        ASSERT_TRUE(live_.empty());
        if (submitted_ == options_.requests) break;
        continue;
      }
      CheckPlan(*plan);
      if (::testing::Test::HasFatalFailure()) return;
      const std::vector<SpanOutcome> outcomes = caches_.Run(*plan);
      ASSERT_EQ(outcomes.size(), plan->spans.size()) << "caches hold another sequence's tokens";
      const std::vector<SequenceUpdate> updates = scheduler_.Commit(*plan, outcomes);
      scheduler_.CheckInvariants();
      Collect(*plan, updates);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(scheduler_.memory().blocks().num_free(), options_.num_blocks);
    EXPECT_EQ(scheduler_.memory().slots().num_free(), options_.max_running);
    EXPECT_EQ(scheduler_.stats().generated_tokens, sampled_);
  }

  SchedulerStats stats() const { return scheduler_.stats(); }

 private:
  int64_t Uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  void SubmitSome() {
    while (submitted_ < options_.requests && (live_.empty() || Uniform(0, 3) == 0)) {
      const int64_t pool = options_.num_blocks * cache::kBlockTokens;
      NewSequence request{.id = static_cast<uint64_t>(++submitted_)};
      const int64_t prompt = Uniform(1, std::min(options_.max_prompt, Uniform(0, 2) == 0 ? pool : pool / 4));
      for (int64_t i = 0; i < prompt; ++i)
        request.prompt.push_back(static_cast<int32_t>(Uniform(0, kVocab - 1)));
      request.max_new_tokens = Uniform(0, std::min(pool - prompt, options_.max_answer));
      if (Uniform(0, 3) == 0) request.stop_ids = {static_cast<int32_t>(Uniform(0, kVocab - 1))};
      request.prompt_logprobs = Uniform(0, 3) == 0;
      live_[request.id] = {.request = request, .expected = Answer(request)};
      scheduler_.Add(request);
    }
  }

  void CancelSome() {
    if (live_.empty() || Uniform(0, 999) >= options_.cancel_permille) return;
    auto victim = live_.begin();
    std::advance(victim, Uniform(0, static_cast<int64_t>(live_.size()) - 1));
    ASSERT_TRUE(scheduler_.Cancel(victim->first));
    ASSERT_FALSE(scheduler_.Cancel(victim->first));
    live_.erase(victim);
    scheduler_.CheckInvariants();
  }

  void CheckPlan(const batch::BatchPlan& plan) {
    const bool prefill = plan.phase == batch::Phase::kPrefill;
    if (prefill) {
      ASSERT_LE(plan.NumRows(), options_.chunk_size);
    }
    std::set<uint64_t> members;
    uint64_t previous = 0;
    for (const batch::PlannedSpan& span : plan.spans) {
      ASSERT_TRUE(members.insert(span.request).second);
      ASSERT_LT(previous, span.request) << "younger before older";
      previous = span.request;
      ASSERT_TRUE(live_.contains(span.request)) << "a dead request runs";
      const NewSequence& request = live_[span.request].request;
      const auto size = static_cast<int64_t>(request.prompt.size());
      const auto rows = static_cast<int64_t>(span.tokens.size());
      // Prompt tokens go through prefill and generated ones through decode, also when they are replayed.
      ASSERT_EQ(prefill, span.prefix < size);
      if (prefill) {
        ASSERT_LE(span.prefix + rows, size);
        ASSERT_EQ(span.prefix % CutGrid(options_.chunk_size), 0);
      } else {
        ASSERT_EQ(rows, 1);
      }
    }
    // While the oldest is past its prompt, it decodes at least in every second step; before, others may have
    // the prefill step between two of its own.
    const uint64_t oldest = live_.begin()->first;
    idle_steps_ = members.contains(oldest) || oldest != watched_ ? 0 : idle_steps_ + 1;
    watched_ = oldest;
    ASSERT_LE(idle_steps_, 3) << "the oldest request starves";
  }

  void Collect(const batch::BatchPlan& plan, const std::vector<SequenceUpdate>& updates) {
    ASSERT_EQ(updates.size(), plan.spans.size());
    for (const SequenceUpdate& update : updates) {
      Live& live = live_[update.id];
      if (update.token) {
        live.tokens.push_back(*update.token);
        ++sampled_;
      }
      if (update.finish == Finish::kNone) continue;
      ASSERT_EQ(live.tokens, live.expected.tokens) << "request " << update.id;
      ASSERT_EQ(update.finish, live.expected.finish);
      live_.erase(update.id);
    }
  }

  struct Live {
    NewSequence request;
    Expected expected;
    std::vector<int32_t> tokens;
  };

  const TraceOptions options_;
  std::mt19937 random_;
  Scheduler scheduler_;
  SimulatedCaches caches_;
  std::map<uint64_t, Live> live_;
  int submitted_ = 0;
  uint64_t sampled_ = 0;
  uint64_t watched_ = 0;
  int idle_steps_ = 0;
};

class SchedulerTraceTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(SchedulerTraceTest, TightPoolsPreemptAndChangeNothing) {
  uint64_t preemptions = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Trace trace({.chunk_size = GetParam(), .max_running = 1 + seed % 7, .num_blocks = 1 + seed % 9}, seed);
    trace.Run();
    if (HasFatalFailure()) return;
    preemptions += trace.stats().preemptions;
  }
  EXPECT_GT(preemptions, 50u) << "the pools were not tight enough to test anything";
}

TEST_P(SchedulerTraceTest, AmplePoolsNeverPreempt) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    // 4 sequences of at most 200 + 50 tokens need 16 blocks; admission keeps one to spare.
    Trace trace(
        {.chunk_size = GetParam(), .max_running = 4, .num_blocks = 17, .max_prompt = 200, .max_answer = 50},
        seed);
    trace.Run();
    if (HasFatalFailure()) return;
    EXPECT_EQ(trace.stats().preemptions, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(ChunkSizes, SchedulerTraceTest, ::testing::Values(1, 3, 64, 100, 128, 2048));

}  // namespace
}  // namespace perigee::scheduler
