#pragma once

#include <cstdint>
#include <vector>

#include "batch/seq_span.h"
#include "batch/step_mode.h"

namespace perigee::batch {

// What the scheduler decided for one sequence in one step. Plain data: the same on every rank.
struct PlannedSpan {
  uint64_t request = 0;              // the scheduler's id of the sequence
  std::vector<int32_t> tokens;       // the new rows' token ids, in order
  int64_t prefix = 0;                // tokens of the sequence already computed
  int32_t state_slot = 0;            // slot of the recurrent and conv states
  bool fresh_state = false;          // first rows of a sequence: the slot must be zeroed before use
  int32_t restore_from = -1;         // slot to copy into state_slot before the step, at most once a start
  int32_t save_to = -1;              // slot that state_slot is copied to after the step
  std::vector<int32_t> block_table;  // latent blocks that cover prefix + tokens
  bool sample = false;               // the last row's logits choose the next token
  bool prompt_logprobs = false;      // the log-probability of every row's successor is wanted
  // Successors of the rows where they are known (prompt_logprobs): the token that follows row i. The last row
  // of the last prompt chunk has none: then this is one shorter than tokens.
  std::vector<int32_t> targets;
};

// One step: prefill or decode, never mixed. In a decode step every span has exactly one row.
struct BatchPlan {
  Phase phase = Phase::kPrefill;
  // Not the scheduler's business: set by the step loop before the plan goes to the ranks.
  StepMode mode = StepMode::kTp;
  std::vector<PlannedSpan> spans;
  // What became free since the last plan, to be poisoned before anything else is done; empty when nothing is.
  std::vector<int32_t> freed_blocks;
  std::vector<int32_t> freed_slots;

  int64_t NumRows() const {
    int64_t rows = 0;
    for (const PlannedSpan& s : spans) rows += static_cast<int64_t>(s.tokens.size());
    return rows;
  }
};

}  // namespace perigee::batch
