#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine_config.h"
#include "engine/machine.h"
#include "engine/memory_plan.h"
#include "engine/parallel_options.h"
#include "model/model_footprint.h"

namespace perigee::engine {

// What one rank costs.
struct RankCosts {
  uint64_t weights = 0;
  uint64_t per_token = 0;     // latent records
  uint64_t per_sequence = 0;  // recurrent states and conv tails
};

// What a model costs, known before its weights are read.
struct ModelCosts {
  int64_t max_context = 0;
  std::vector<RankCosts> ranks;
  uint64_t embedding_bytes = 0;
  // Scratch of the largest step on a rank, by the sizes of a configuration that is decided; empty: none.
  std::function<uint64_t(const EngineConfig& config, int rank)> workspace;
};

// Of all ranks. `shape` outlives the result. Pure.
ModelCosts CostsOf(const model::ModelFootprint& shape, const ParallelPlan& plan, const EngineConfig& config);

// Sizes as they will be, and what they take.
struct Sized {
  EngineConfig config;
  MemoryPlan memory;
};

// Checks the values against the model and fills in the defaults (engine_config.h) so that all fits into the
// budget, if anything does: the plan says whether (CheckFits). max_total_tokens becomes what the budget holds
// beside everything else, but at most what max_running_requests whole contexts need and at least one context;
// always a multiple of the block. Snapshots that were not asked for give way to that one context. Pure.
StatusOr<Sized> DecideSizes(EngineConfig config, const ModelCosts& model, const Machine& machine);

// kResourceExhausted with the numbers, and with flags that would fit, when the plan is over its budget.
Status CheckFits(const Sized& sized, const ModelCosts& model);

// Threads of one rank.
int RankThreads(const EngineConfig& config, int rank);

}  // namespace perigee::engine
