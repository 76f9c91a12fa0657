#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "batch/batch_plan.h"
#include "cache/paged_kv_cache.h"
#include "scheduler/scheduler.h"

namespace perigee::scheduler {

// The token that follows a history in every simulated run.
inline int32_t NextToken(const std::vector<int32_t>& history, int32_t vocab) {
  uint64_t h = 1469598103934665603u;
  for (const int32_t token : history) h = (h ^ static_cast<uint64_t>(token)) * 1099511628211u;
  return static_cast<int32_t>((h >> 32) % static_cast<uint64_t>(vocab));
}

// Plays the model: writes tokens into the blocks and slots that a plan names and reads the history back from
// there, so that a block or slot in the wrong hands changes what is sampled.
class SimulatedCaches {
 public:
  explicit SimulatedCaches(int32_t vocab) : vocab_(vocab) {}

  // Empty when the history in the blocks and in the slot differ: a broken plan.
  std::vector<SpanOutcome> Run(const batch::BatchPlan& plan) {
    std::vector<SpanOutcome> outcomes;
    for (const batch::PlannedSpan& span : plan.spans) {
      std::vector<int32_t>& state = slots_[span.state_slot];
      if (span.fresh_state) state.clear();
      for (size_t i = 0; i < span.tokens.size(); ++i) {
        Record(span, span.prefix + static_cast<int64_t>(i)) = span.tokens[i];
        state.push_back(span.tokens[i]);
      }
      std::vector<int32_t> latents;
      for (int64_t t = 0; t < span.prefix + static_cast<int64_t>(span.tokens.size()); ++t) {
        latents.push_back(Record(span, t));
      }
      if (latents != state) return {};
      outcomes.push_back({.token = span.sample ? NextToken(latents, vocab_) : -1});
    }
    return outcomes;
  }

 private:
  int32_t& Record(const batch::PlannedSpan& span, int64_t position) {
    const auto block = static_cast<size_t>(position / cache::kBlockTokens);
    std::vector<int32_t>& records = blocks_[span.block_table.at(block)];
    records.resize(cache::kBlockTokens, -1);
    return records[static_cast<size_t>(position % cache::kBlockTokens)];
  }

  int32_t vocab_;
  std::map<int32_t, std::vector<int32_t>> blocks_;
  std::map<int32_t, std::vector<int32_t>> slots_;
};

}  // namespace perigee::scheduler
