#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/kimi_linear/config.h"
#include "parallel/layout_plan.h"
#include "parallel/planner.h"

namespace perigee::engine {

// What moves around all blocks of one kind that have equal transitions. Transitions by name
// (parallel::TransitionName).
struct PlanTransition {
  std::string kind;     // entry, kda, mla, feed_forward or exit
  int64_t blocks = 0;   // how many of them
  std::string stream;   // of (branch, residual), before the norm
  std::string input;    // of the normed rows
  std::string latents;  // of MLA's new records
  std::string states;   // of KDA's rows before segments, and of what segments do to the state: twice
  std::string output;   // of the block's result; of the embedded rows; of the final norm's rows
  std::string rows;     // that the block takes: full or cp
};

// Elements that a rank sends for each row of a prompt, on average over rows and ranks.
struct PlanElements {
  double entry = 0;
  double kda = 0;  // all layers of the kind together
  double mla = 0;
  double feed_forward = 0;
  double exit = 0;    // of `replicated`, whose model boundary hands out whole rows
  double logits = 0;  // a wanted row on its way to the head; apart from the total
  double total = 0;   // entry to exit, every row wanted
  // Of `state`, apart from the total: for each chunk of a prompt, whatever its rows; of the rank that sends
  // most.
  double first_chunk = 0;
  double later_chunk = 0;
  double last_layer = 0;  // the part of entry to exit that only wanted rows cause

  // Entry to exit of a prompt of which only the last row is wanted.
  double Served(int64_t prompt) const {
    return total - last_layer * static_cast<double>(prompt - 1) / static_cast<double>(prompt);
  }
};

// Pure.
std::vector<PlanTransition> TransitionTable(const parallel::LayoutPlan& plan, int attn_cp);
// chunk: rows of the prompt's first step.
PlanElements CountElements(const parallel::LayoutPlan& plan, const parallel::ModelShape& model,
                           const parallel::RankShape& ranks, int64_t chunk);

}  // namespace perigee::engine
