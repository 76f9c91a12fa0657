#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/batch_plan.h"
#include "cache/prefix_index.h"

namespace perigee::scheduler {

// What the scheduler needs to know of a request.
struct NewSequence {
  uint64_t id = 0;
  std::vector<int32_t> prompt;    // at least one token
  int64_t max_new_tokens = 0;     // 0: the prompt is computed and nothing is sampled
  std::vector<int32_t> stop_ids;  // a sampled token among these ends the sequence
  bool prompt_logprobs = false;
};

enum class Finish { kNone, kStop, kLength, kFailed };

// What a sequence holds of the pools and the prefix index; kept by SequenceMemory.
struct HeldMemory {
  int64_t promised = 0;  // blocks that admission counted on, until it begins
  int32_t slot = -1;
  std::vector<int32_t> blocks;
  cache::PrefixIndex::Hold path;  // its place in the index: the blocks that it shares or published
  // The snapshot that the first step after a start copies from, pinned; -1: none.
  int32_t restore_from = -1;
  cache::PrefixIndex::Node* restore_node = nullptr;
  int32_t save_to = -1;  // snapshot that the step in flight writes; -1: none
  // The newest snapshot that its answer left, which the next one replaces.
  int32_t answer_snapshot = -1;
  cache::PrefixIndex::Node* answer_node = nullptr;
};

// One request's progress. `tokens` only grows; `num_computed` of them are in the caches. A sequence begins
// with what the prefix index has of it. A preempted one does so again: the rest of the prompt is fed in
// chunks and the generated tokens one by one in decode form, and a token is sampled only where none is known
// yet.
class Sequence {
 public:
  explicit Sequence(NewSequence request);

  uint64_t id() const { return id_; }
  int64_t prompt_size() const { return prompt_size_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t num_generated() const { return num_tokens() - prompt_size_; }
  int64_t num_computed() const { return num_computed_; }
  bool wants_prompt_logprobs() const { return prompt_logprobs_; }
  // Prompt tokens that are or were in the caches.
  int64_t prompt_reached() const { return prompt_reached_; }
  bool in_prefill() const { return num_computed_ < prompt_size_; }
  bool was_preempted() const { return was_preempted_; }

  // Whether it has got anything that reuse must reproduce to the bit: tokens or log-probabilities.
  bool has_results() const { return num_generated() > 0 || (prompt_logprobs_ && prompt_reached_ > 0); }
  // How many tokens may be taken from the caches: not the last one, whose logits are wanted, nor rows whose
  // log-probabilities are wanted and not known yet.
  int64_t ReuseLimit() const;

  // It runs from here on, with the first `reused` tokens in the caches; `mixed`: see PrefixIndex::Match.
  void Begin(int64_t reused, bool mixed);
  bool begun() const { return begun_; }
  // The place after the known blocks where no state was kept, or 0: to be mended by this sequence.
  int64_t branch_point = 0;

  // Prompt tokens that were not computed for this request until its prompt had been through. skipped_tokens
  // also has those that were reused at first and computed after a preemption.
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t skipped_tokens() const { return skipped_tokens_; }
  // Whether it was ever built upon reused rows that were not computed in the prompt form.
  bool reused_answer() const { return reused_answer_; }
  // Of the block or state that ends at `end` tokens, by this sequence.
  cache::Origin OriginAt(int64_t end) const;

  // The next `rows` tokens as a span of a step, with the memory that the sequence holds.
  batch::PlannedSpan PlanRows(int64_t rows) const;

  // The rows are in the caches.
  void Advance(int64_t rows);
  // Appends a sampled token and says whether the sequence ends with it.
  Finish Append(int32_t token);
  // The caches forget the sequence.
  void Restart();

  HeldMemory memory;

 private:
  uint64_t id_;
  std::vector<int32_t> tokens_;  // prompt, then generated
  int64_t prompt_size_;
  int64_t max_new_tokens_;
  std::vector<int32_t> stop_ids_;  // ascending
  bool prompt_logprobs_;
  int64_t num_computed_ = 0;
  int64_t prompt_reached_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t skipped_tokens_ = 0;
  bool begun_ = false;
  bool mixed_ = false;  // since the last start
  bool reused_answer_ = false;
  bool was_preempted_ = false;
};

}  // namespace perigee::scheduler
