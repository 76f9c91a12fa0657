#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "batch/step_mode.h"
#include "engine/model_runner.h"
#include "model/registry.h"

namespace perigee::engine {

// The flags that spread a model over ranks, as given: empty strings mean the default.
struct ParallelOptions {
  int32_t tp = 1;       // --tp: all ranks
  int32_t attn_cp = 1;  // --attn-cp-size: ranks that share one prompt's rows
  int32_t ep = 1;       // --ep-size
  bool enable_prefill_cp = false;
  std::string cp_strategy;            // --cp-strategy: required with --enable-prefill-cp
  std::string cp_layout;              // --cp-layout {sharded, replicated}
  std::string cp_kda_mode;            // --cp-kda-mode {auto, head, state, tp}
  std::string cp_attn_form;           // --cp-attn-form {auto, absorbed, materialised}
  std::optional<bool> deterministic;  // --deterministic {on, off}; default on where it can be
  // What the planner reckons with (engine/plan_rates.h).
  std::string plan_profile;          // --plan-profile: a JSON file
  std::optional<double> link_gbps;   // --link-gbps
  std::optional<double> latency_us;  // --latency-us
  std::optional<double> tflops;      // --tflops
};

// What they come to.
struct ParallelPlan {
  batch::StepMode prefill_mode = batch::StepMode::kTp;
  bool planned = false;  // each step takes the mode that the planner finds cheapest; then the above is moot
  StepPolicy policy;
  bool deterministic = true;
  std::vector<std::string> notices;  // one line each for the user
};

// Checks the flags against each other. Errors name flag, value and what is accepted. Pure.
StatusOr<ParallelPlan> ResolveParallel(const ParallelOptions& options);
// Checks that the model's heads, experts and vocabulary can be cut that way. Pure.
Status CheckModelCut(const ParallelOptions& options, const model::ModelSizes& sizes);

// The part of the weights that a rank holds. options: as resolved above.
parallel::Shard ShardOfRank(const ParallelOptions& options, int rank);

}  // namespace perigee::engine
