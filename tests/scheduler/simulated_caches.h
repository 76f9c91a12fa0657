#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cache/paged_kv_cache.h"
#include "scheduler/scheduler.h"

namespace perigee::scheduler {

inline uint64_t MixBits(uint64_t h, uint64_t value) {
  return (h ^ value) * 1099511628211u;
}

inline constexpr uint64_t kNoHistory = 1469598103934665603u;

// The token that follows a history with this hash (MixBits of its tokens, from kNoHistory on) in every
// simulated run.
inline int32_t NextToken(uint64_t history, int32_t vocab) {
  return static_cast<int32_t>((history >> 32) % static_cast<uint64_t>(vocab));
}

inline int32_t NextToken(std::span<const int32_t> history, int32_t vocab) {
  uint64_t h = kNoHistory;
  for (const int32_t token : history) h = MixBits(h, static_cast<uint64_t>(token));
  return NextToken(h, vocab);
}

// What a row leaves behind: its token, and bits that depend on all that was read to compute it and on the
// form in which it was.
struct SimulatedRecord {
  int32_t token = -1;
  uint64_t bits = 0;
};

struct SimulatedState {
  uint64_t history = kNoHistory;
  uint64_t bits = 0;
  int64_t length = 0;
};

inline uint64_t RowBits(uint64_t latents, uint64_t state, int32_t token, batch::Phase phase) {
  const uint64_t h = MixBits(MixBits(latents, state), static_cast<uint64_t>(token));
  return MixBits(h, phase == batch::Phase::kDecode ? 7 : 3);
}

// The bits of the last of `tokens` when the first `prompt_size` run as a prompt and the others one by one.
inline uint64_t LoneBits(std::span<const int32_t> tokens, int64_t prompt_size) {
  uint64_t latents = 0, bits = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool decode = static_cast<int64_t>(i) >= prompt_size;
    bits = RowBits(latents, bits, tokens[i], decode ? batch::Phase::kDecode : batch::Phase::kPrefill);
    latents = MixBits(latents, bits);
  }
  return bits;
}

// Plays the model: writes records into the blocks and slots that a plan names and reads the history back from
// there, so that a block, slot or snapshot in the wrong hands changes what is sampled.
class SimulatedCaches {
 public:
  explicit SimulatedCaches(int32_t vocab) : vocab_(vocab) {}

  // Empty when the histories in the blocks and in the slot differ: a broken plan.
  std::vector<SpanOutcome> Run(const batch::BatchPlan& plan) {
    for (const int32_t block : plan.freed_blocks) blocks_.erase(block);
    for (const int32_t slot : plan.freed_slots) slots_.erase(slot);
    for (const batch::PlannedSpan& span : plan.spans) {
      if (span.fresh_state) slots_[span.state_slot] = {};
      if (span.restore_from >= 0) slots_[span.state_slot] = slots_.at(span.restore_from);
    }
    std::vector<SpanOutcome> outcomes;
    bits_.clear();
    for (const batch::PlannedSpan& span : plan.spans) {
      if (!RunSpan(span, plan.phase, outcomes)) return {};
    }
    for (const batch::PlannedSpan& span : plan.spans) {
      if (span.save_to >= 0) slots_[span.save_to] = slots_.at(span.state_slot);
    }
    return outcomes;
  }

  // Of each span's last row in the last step.
  const std::vector<uint64_t>& bits() const { return bits_; }

 private:
  bool RunSpan(const batch::PlannedSpan& span, batch::Phase phase, std::vector<SpanOutcome>& outcomes) {
    const auto state_entry = slots_.find(span.state_slot);
    if (state_entry == slots_.end()) return false;
    SimulatedState& state = state_entry->second;
    uint64_t history = kNoHistory, latents = 0;
    for (int64_t t = 0; t < span.prefix; ++t) {
      const SimulatedRecord& record = Record(span, t);
      history = MixBits(history, static_cast<uint64_t>(record.token));
      latents = MixBits(latents, record.bits);
    }
    if (state.length != span.prefix || state.history != history) return false;
    for (size_t i = 0; i < span.tokens.size(); ++i) {
      state.bits = RowBits(latents, state.bits, span.tokens[i], phase);
      state.history = MixBits(state.history, static_cast<uint64_t>(span.tokens[i]));
      ++state.length;
      Record(span, span.prefix + static_cast<int64_t>(i)) = {span.tokens[i], state.bits};
      latents = MixBits(latents, state.bits);
    }
    bits_.push_back(state.bits);
    outcomes.push_back({.token = span.sample ? NextToken(state.history, vocab_) : -1});
    return true;
  }

  SimulatedRecord& Record(const batch::PlannedSpan& span, int64_t position) {
    const auto block = static_cast<size_t>(position / cache::kBlockTokens);
    if (position % cache::kBlockTokens == 0 || last_ != span.block_table.at(block)) {
      last_ = span.block_table.at(block);
      records_ = &blocks_[last_];
    }
    return (*records_)[static_cast<size_t>(position % cache::kBlockTokens)];
  }

  using Block = std::array<SimulatedRecord, cache::kBlockTokens>;

  int32_t vocab_;
  std::map<int32_t, Block> blocks_;
  std::map<int32_t, SimulatedState> slots_;
  std::vector<uint64_t> bits_;
  int32_t last_ = -1;  // the block of the last Record
  Block* records_ = nullptr;
};

}  // namespace perigee::scheduler
