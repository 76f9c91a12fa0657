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
  uint64_t embedding_bytes = 0;  // of a process
  int processes = 1;             // that the ranks are spread over
  // Scratch of the largest step on a rank, by the sizes of a configuration that is decided; empty: none.
  std::function<uint64_t(const EngineConfig& config, int rank)> workspace;
};

// Of all ranks; `processes`: 1, or a process a rank. `shape` outlives the result. Pure.
ModelCosts CostsOf(const model::ModelFootprint& shape, const ParallelPlan& plan, const EngineConfig& config,
                   int processes = 1);

// Sizes as they will be, and what they take.
struct Sized {
  EngineConfig config;
  MemoryPlan memory;
};

// Checks the values against the model and fills in the defaults (engine_config.h) so that all fits into the
// budget, if anything does: the plan says whether (CheckFits). Values that were given stay. max_total_tokens
// becomes what the budget holds beside everything else, but at most what max_running_requests whole contexts
// need; always a multiple of the block. What was not given gives way in this order: snapshots, until the pool
// holds a whole context; then the pool, until it holds a chunk (or the context that was given); then the
// number of requests. Pure.
StatusOr<Sized> DecideSizes(const EngineConfig& given, const ModelCosts& model, const Machine& machine);

// kResourceExhausted with the numbers, and with flags that would fit, when the plan for `given` (DecideSizes)
// is over its budget. Pure.
Status CheckFits(const EngineConfig& given, const Sized& sized, const ModelCosts& model,
                 const Machine& machine);

// Threads of one rank.
int RankThreads(const EngineConfig& config, int rank);

}  // namespace perigee::engine
