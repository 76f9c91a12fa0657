#pragma once

#include <cstdint>
#include <vector>

#include "batch/batch_plan.h"

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

// One request's progress. `tokens` only grows; `num_computed` of them are in the caches. A preempted sequence
// starts over with num_computed = 0: the prompt is fed in chunks again, the generated tokens one by one in
// decode form, and a token is sampled only where none is known yet.
class Sequence {
 public:
  explicit Sequence(NewSequence request);

  uint64_t id() const { return id_; }
  int64_t prompt_size() const { return prompt_size_; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t num_generated() const { return num_tokens() - prompt_size_; }
  int64_t num_computed() const { return num_computed_; }
  // Prompt tokens that were computed at least once.
  int64_t prompt_reached() const { return prompt_reached_; }
  bool in_prefill() const { return num_computed_ < prompt_size_; }
  bool was_preempted() const { return was_preempted_; }

  // The next `rows` tokens as a span of a step, with the memory that the sequence holds.
  batch::PlannedSpan PlanRows(int64_t rows) const;

  // The rows are in the caches.
  void Advance(int64_t rows);
  // Appends a sampled token and says whether the sequence ends with it.
  Finish Append(int32_t token);
  // The caches forget the sequence.
  void Restart();

  // Memory held, kept by SequenceMemory.
  int32_t slot = -1;
  std::vector<int32_t> blocks;

 private:
  uint64_t id_;
  std::vector<int32_t> tokens_;  // prompt, then generated
  int64_t prompt_size_;
  int64_t max_new_tokens_;
  std::vector<int32_t> stop_ids_;  // ascending
  bool prompt_logprobs_;
  int64_t num_computed_ = 0;
  int64_t prompt_reached_ = 0;
  bool was_preempted_ = false;
};

}  // namespace perigee::scheduler
