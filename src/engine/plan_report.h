#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/memory_plan.h"
#include "engine/parallel_options.h"
#include "engine/plan_costs.h"
#include "engine/plan_rates.h"
#include "engine/plan_traffic.h"

namespace perigee::engine {

// What to plan. Exactly one of model_path and shape is set.
struct PlanRequest {
  std::string model_path;  // a folder; config.json and, if there, the headers of its weights are read
  std::string shape;       // a published shape ("kimi-linear-48b")
  ParallelOptions parallel;
  int64_t prompt = 0;  // tokens, at least 1
  EngineConfig sizes;  // of pools and steps; its model_path and parallel are not read
};

// Another mode that prompts could run in.
struct PlanAlternative {
  std::string mode;
  std::string flags;  // that lead to it
  PlanElements elements;
};

// From so many rows on, up to the next entry, a mode is the cheapest for a prompt that runs alone in one
// step.
struct PlanRange {
  int64_t rows = 1;
  std::string mode;
};

// Rows of a prompt from which on `state` sends fewer bytes than `head`: every link equal, rows of 2 bytes.
struct PlanBreakEven {
  std::string strategy;
  int64_t rows = 0;
};

struct PlanChoice {
  std::string mode;            // of prompts: tp, head, state or replicated; a planned one of the first chunk
  std::string strategy;        // zigzag or contiguous; none when rows are not split
  std::string attention_form;  // materialised, absorbed or by_cost
  int64_t chunk = 0;           // rows of a prefill step
  bool deterministic = true;
  std::string why;                            // one sentence
  std::vector<PlanAlternative> alternatives;  // none with one CP rank
  // With several CP ranks and KDA layers: by the rates that the planner is given, and by bytes alone.
  GivenRates rates;
  std::vector<PlanRange> cheapest;
  std::vector<PlanBreakEven> break_even;  // one a strategy
};

// What runs where, what moves, and what it costs, of one model on given ranks.
struct PlanReport {
  std::string model;
  int64_t prompt = 0;
  int32_t tp = 1;
  int32_t attn_cp = 1;
  int32_t ep = 1;
  int64_t unit = 0;  // u: elements of a hidden row
  std::vector<std::string> notices;
  std::vector<PlanTransition> prefill;
  std::vector<PlanTransition> decode;
  PlanElements elements;
  std::vector<RankFlops> flops;  // one a rank
  double balance = 1;            // of total operations: largest over mean
  double pairs_balance = 1;      // of pairs of query and key
  PlanChoice choice;
  MemoryPlan memory;       // as serving with the same flags on this machine would decide it
  std::string memory_fit;  // empty: it fits; else why not, and what would
};

// kUsage when flags do not fit each other, the model or the prompt. Takes milliseconds at any prompt length.
StatusOr<PlanReport> MakePlan(const PlanRequest& request);

// For a person, ending in a line break.
std::string PlanText(const PlanReport& report);

}  // namespace perigee::engine
