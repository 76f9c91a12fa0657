#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/simulated_caches.h"

namespace perigee::scheduler {
namespace {

constexpr int32_t kVocab = 23;
// Sanitizers are an order of magnitude slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kTraces = 1000;
#else
constexpr int kTraces = 10000;
#endif

struct TraceOptions {
  int64_t max_running = 4;
  int64_t num_blocks = 8;
  int64_t num_snapshots = 4;
  int64_t chunk_size = 128;
  int64_t max_prefill_rows = 128;
  int64_t checkpoint_interval = 128;
};

// What all traces together came across: each must have been reached.
struct Seen {
  uint64_t steps = 0, preemptions = 0, hits = 0, reused_answers = 0, evicted_blocks = 0,
           evicted_snapshots = 0;
  uint64_t cancels = 0, resumed_in_answer = 0, exact_hits = 0;
  uint64_t shortest_trace = UINT64_MAX;
};

// Numbers from one generated number.
class Dice {
 public:
  explicit Dice(uint32_t seed) : h_(seed) {}
  int64_t Uniform(int64_t low, int64_t high) {
    h_ = (h_ + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    h_ ^= h_ >> 29;
    return low + static_cast<int64_t>((h_ >> 16) % static_cast<uint64_t>(high - low + 1));
  }

 private:
  uint64_t h_;
};

// One run of many requests that share prefixes, checked after every step.
class Trace {
 public:
  Trace(const TraceOptions& options, Seen& seen)
      : options_(options),
        seen_(seen),
        scheduler_({.max_running = options.max_running,
                    .chunk_size = options.chunk_size,
                    .max_prefill_rows = options.max_prefill_rows,
                    .num_blocks = options.num_blocks,
                    .num_snapshots = options.num_snapshots,
                    .checkpoint_interval = options.checkpoint_interval,
                    .name_freed = true}),
        caches_(kVocab) {}

  void Run(const std::vector<uint32_t>& script) {
    for (size_t i = 0; i < script.size() || steps_ < 50 || last_id_ < 8; ++i) {
      Dice dice(i < script.size() ? script[i] : static_cast<uint32_t>(i));
      const int64_t kind = dice.Uniform(0, 11);
      if (kind == 0 && dice.Uniform(0, 3) == 0) {
        scheduler_.FlushCache();
      } else if (kind <= 2 && !live_.empty()) {
        Cancel(dice);
      } else {
        Submit(dice);
      }
      scheduler_.CheckInvariants();
      for (int64_t n = dice.Uniform(0, 9); n > 0 && !live_.empty(); --n) Step();
    }
    while (!live_.empty()) Step();
    RC_ASSERT(!scheduler_.Next().has_value());
    Drain();
  }

 private:
  struct Live {
    NewSequence request;
    std::vector<int32_t> tokens;  // prompt and answer
    int64_t reached = 0;          // tokens that were ever in the caches
    uint64_t bits = 0;            // of the row that ran last
    bool reused_answer = false;
  };

  // A prompt is a beginning that others have too, or what an earlier request ended with, and something new.
  std::vector<int32_t> Prompt(Dice& dice, int64_t limit) {
    std::vector<int32_t> prompt;
    if (!ended_.empty() && dice.Uniform(0, 2) > 0) {
      prompt = ended_[static_cast<size_t>(dice.Uniform(0, static_cast<int64_t>(ended_.size()) - 1))];
      if (dice.Uniform(0, 3) == 0)
        prompt.resize(static_cast<size_t>(dice.Uniform(1, static_cast<int64_t>(prompt.size()))));
    } else {
      const int64_t family = dice.Uniform(1, 3);
      for (int64_t i = dice.Uniform(0, 260); i > 0; --i) {
        prompt.push_back(static_cast<int32_t>((family * 7 + static_cast<int64_t>(prompt.size())) % kVocab));
      }
    }
    for (int64_t i = dice.Uniform(0, 2) == 0 ? 0 : dice.Uniform(1, 90); i > 0; --i) {
      prompt.push_back(static_cast<int32_t>(dice.Uniform(0, kVocab - 1)));
    }
    if (prompt.empty()) prompt.push_back(1);
    if (static_cast<int64_t>(prompt.size()) > limit) prompt.resize(static_cast<size_t>(limit));
    return prompt;
  }

  void Submit(Dice& dice) {
    const int64_t pool = options_.num_blocks * cache::kBlockTokens;
    NewSequence request{.id = ++last_id_, .prompt = Prompt(dice, pool)};
    const auto size = static_cast<int64_t>(request.prompt.size());
    request.max_new_tokens =
        dice.Uniform(0, std::min<int64_t>(pool - size, dice.Uniform(0, 2) == 0 ? 150 : 40));
    if (dice.Uniform(0, 3) == 0) request.stop_ids = {static_cast<int32_t>(dice.Uniform(0, kVocab - 1))};
    request.prompt_logprobs = dice.Uniform(0, 5) == 0;
    live_[request.id] = {.request = request, .tokens = request.prompt};
    scheduler_.Add(std::move(request));
  }

  void Cancel(Dice& dice) {
    auto victim = live_.begin();
    std::advance(victim, dice.Uniform(0, static_cast<int64_t>(live_.size()) - 1));
    RC_ASSERT(scheduler_.Cancel(victim->first));
    live_.erase(victim);
    ++seen_.cancels;
  }

  void Step() {
    const std::optional<batch::BatchPlan> plan = scheduler_.Next();
    RC_ASSERT(plan.has_value());
    CheckPlan(*plan);
    const std::vector<SpanOutcome> outcomes = caches_.Run(*plan);
    RC_ASSERT(outcomes.size() == plan->spans.size());
    const std::vector<SequenceUpdate> updates = scheduler_.Commit(*plan, outcomes);
    scheduler_.CheckInvariants();
    const SequenceMemory& memory = scheduler_.memory();
    RC_ASSERT(memory.index().used_snapshots() <= options_.num_snapshots);
    for (size_t i = 0; i < updates.size(); ++i) Collect(updates[i], caches_.bits()[i]);
    ++steps_;
  }

  void CheckPlan(const batch::BatchPlan& plan) {
    const bool prefill = plan.phase == batch::Phase::kPrefill;
    // Who was preempted starts over; it is not worth knowing who that was.
    const uint64_t preemptions = scheduler_.stats().preemptions;
    if (std::exchange(preemptions_, preemptions) != preemptions) decoding_.clear();
    RC_ASSERT((!prefill || plan.NumRows() <= options_.max_prefill_rows));
    std::set<uint64_t> members;
    std::set<int32_t> written;
    for (const batch::PlannedSpan& span : plan.spans) {
      RC_ASSERT(live_.contains(span.request));
      RC_ASSERT((members.empty() || *members.rbegin() < span.request));
      members.insert(span.request);
      CheckSpan(span, prefill);
      RC_ASSERT(written.insert(span.state_slot).second);
      if (span.save_to >= 0) RC_ASSERT(written.insert(span.save_to).second);
      const auto first = static_cast<size_t>(span.prefix / cache::kBlockTokens);
      for (size_t b = first; b < span.block_table.size(); ++b) {
        RC_ASSERT(written.insert(-1 - span.block_table[b]).second);
      }
    }
    const uint64_t oldest = live_.begin()->first;
    idle_steps_ = members.contains(oldest) || oldest != watched_ ? 0 : idle_steps_ + 1;
    watched_ = oldest;
    RC_ASSERT(idle_steps_ <= 3);
    // Who is past its prompt waits for one prefill step at most, if there is memory.
    RC_ASSERT((!prefill || !last_was_prefill_ || !SomebodyCouldDecode()));
    last_was_prefill_ = prefill;
  }

  void CheckSpan(const batch::PlannedSpan& span, bool prefill) {
    const NewSequence& request = live_[span.request].request;
    const auto size = static_cast<int64_t>(request.prompt.size());
    const auto rows = static_cast<int64_t>(span.tokens.size());
    RC_ASSERT(prefill == (span.prefix < size));
    if (prefill) {
      RC_ASSERT(span.prefix % cache::kBlockTokens == 0);
      RC_ASSERT(span.prefix + rows <= size);
      decoding_.erase(span.request);  // it starts over
    } else {
      RC_ASSERT(rows == 1);
    }
    RC_ASSERT(span.fresh_state == (span.prefix == 0));
    RC_ASSERT((span.restore_from < 0 || span.prefix % cache::kBlockTokens == 0));
    RC_ASSERT((span.save_to < 0 || (span.prefix + rows) % cache::kBlockTokens == 0));
    // A row whose log-probability is wanted is never skipped.
    int64_t& reached = live_[span.request].reached;
    if (request.prompt_logprobs && reached < size) RC_ASSERT(span.prefix <= reached);
    reached = std::max(reached, span.prefix + rows);
    if (span.restore_from < 0) return;
    ++seen_.hits;
    if (!prefill) ++seen_.resumed_in_answer;
  }

  // The oldest that has sampled something and goes on.
  bool SomebodyCouldDecode() const {
    const Live& oldest = live_.begin()->second;
    return decoding_.contains(live_.begin()->first) && oldest.tokens.size() > oldest.request.prompt.size();
  }

  void Collect(const SequenceUpdate& update, uint64_t bits) {
    Live& live = live_[update.id];
    live.bits = bits;
    live.reused_answer = update.reused_answer;
    if (update.token) {
      live.tokens.push_back(*update.token);
      decoding_.insert(update.id);
    }
    if (update.finish == Finish::kNone) return;
    CheckAnswer(live, update);
    ended_.push_back(live.tokens);
    decoding_.erase(update.id);
    live_.erase(update.id);
  }

  void CheckAnswer(const Live& live, const SequenceUpdate& update) {
    const NewSequence& request = live.request;
    const auto size = static_cast<int64_t>(request.prompt.size());
    RC_ASSERT(update.cached_tokens <= size - 1);
    std::vector<int32_t> expected = request.prompt;
    Finish finish = Finish::kLength;
    while (static_cast<int64_t>(expected.size()) < size + request.max_new_tokens && finish != Finish::kStop) {
      expected.push_back(NextToken(expected, kVocab));
      if (std::count(request.stop_ids.begin(), request.stop_ids.end(), expected.back()) > 0)
        finish = Finish::kStop;
    }
    RC_ASSERT(live.tokens == expected);
    RC_ASSERT(update.finish == finish);
    // The bits of a run alone, unless rows of somebody's answer were reused as rows of a prompt.
    const size_t computed = expected.size() - (request.max_new_tokens > 0 ? 1 : 0);
    const uint64_t lone = LoneBits(std::span(expected).first(computed), size);
    if (live.reused_answer) {
      ++seen_.reused_answers;
    } else {
      RC_ASSERT(live.bits == lone);
      seen_.exact_hits += update.cached_tokens > 0 ? 1 : 0;
    }
  }

  // Nothing is left but the cache, and then nothing.
  void Drain() {
    const SequenceMemory& memory = scheduler_.memory();
    RC_ASSERT(memory.slots().num_free() == options_.max_running);
    RC_ASSERT(memory.blocks().num_free() + memory.index().cached_blocks() == options_.num_blocks);
    const SchedulerStats stats = scheduler_.stats();
    RC_ASSERT(stats.prefix_hits <= stats.prefix_lookups);
    seen_.preemptions += stats.preemptions;
    seen_.evicted_blocks += memory.index().evicted_blocks();
    seen_.evicted_snapshots += memory.index().evicted_snapshots();
    seen_.steps += steps_;
    seen_.shortest_trace = std::min(seen_.shortest_trace, steps_);
    scheduler_.FlushCache();
    scheduler_.CheckInvariants();
    RC_ASSERT(memory.blocks().num_free() == options_.num_blocks);
    RC_ASSERT(memory.index().used_snapshots() == 0);
  }

  const TraceOptions options_;
  Seen& seen_;
  Scheduler scheduler_;
  SimulatedCaches caches_;
  std::map<uint64_t, Live> live_;
  std::set<uint64_t> decoding_;
  std::vector<std::vector<int32_t>> ended_;
  uint64_t last_id_ = 0;
  uint64_t watched_ = 0;
  int idle_steps_ = 0;
  bool last_was_prefill_ = false;
  uint64_t preemptions_ = 0;
  uint64_t steps_ = 0;
};

TEST(PrefixTraceTest, TracesKeepEveryPromise) {
  Seen seen;
  const auto property = [&] {
    TraceOptions options;
    options.max_running = *rc::gen::inRange<int64_t>(1, 7);
    options.num_blocks = *rc::gen::inRange<int64_t>(2, 20);
    options.num_snapshots = *rc::gen::inRange<int64_t>(1, 17);
    options.chunk_size = 64 * *rc::gen::inRange<int64_t>(1, 5);
    options.max_prefill_rows = options.chunk_size * *rc::gen::inRange<int64_t>(1, 3);
    options.checkpoint_interval = 64 * *rc::gen::inRange<int64_t>(1, 5);
    const auto script = *rc::gen::container<std::vector<uint32_t>>(20, rc::gen::arbitrary<uint32_t>());
    Trace(options, seen).Run(script);
  };
  rc::detail::TestParams params;
  params.seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  params.maxSuccess = kTraces;
  const rc::detail::TestResult result =
      rc::detail::checkTestable(property, rc::detail::TestMetadata(), params);
  if (!result.is<rc::detail::SuccessResult>()) {
    rc::detail::printResultMessage(result, std::cerr);
    FAIL();
  }
  std::cerr << seen.steps << " steps, at least " << seen.shortest_trace << " a trace; " << seen.preemptions
            << " preemptions, " << seen.cancels << " cancels, " << seen.hits << " hits (" << seen.exact_hits
            << " to the bit, " << seen.reused_answers << " with rows of answers, " << seen.resumed_in_answer
            << " resumed within an answer), evicted " << seen.evicted_blocks << " blocks and "
            << seen.evicted_snapshots << " snapshots\n";
  EXPECT_GE(seen.shortest_trace, 50u);
  EXPECT_GT(seen.preemptions, kTraces / 10u);
  EXPECT_GT(seen.exact_hits, kTraces / 10u);
  EXPECT_GT(seen.reused_answers, kTraces / 40u);
  EXPECT_GT(seen.resumed_in_answer, kTraces / 100u);
  EXPECT_GT(seen.evicted_snapshots, kTraces / 10u);
  EXPECT_GT(seen.evicted_blocks, kTraces / 10u);
}

}  // namespace
}  // namespace perigee::scheduler
